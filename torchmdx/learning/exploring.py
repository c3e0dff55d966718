"""The stage of exploration: all batches of a round, and what they say about the potential."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from torchmdx.datasets.labelling.geometry import UnlabelledStructure
from torchmdx.learning.cluster import explore_there
from torchmdx.learning.explore import BatchRun
from torchmdx.learning.explored import FAILED, THRESHOLD, WHOLE, Explored, FoundFrame
from torchmdx.learning.replicas import Replica, batches_of, dynamics_of, replicas_of, require_periodic
from torchmdx.learning.run_folder import STRUCTURES, RunFolder, StoppedBySignal
from torchmdx.learning.stage import StageFolder
from torchmdx.learning.structures import read_structures, system_of
from torchmdx.learning.uncertainty import quantile, require_uncertain
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.runtime.progress_line import ProgressLine, bar
from torchmdx.runtime.wording import counted, number
from torchmdx.structures.system import System

SHARE = 0.95  # of the frames, whose largest uncertainty is that of a round
Result = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Beginnings:
    """The structures that replicas of a round begin with, their names, and the replicas in batches."""

    structures: list[UnlabelledStructure]
    names: list[str]
    batches: list[list[Replica]]

    @classmethod
    def of(cls, run: RunFolder, round_number: int) -> Beginnings:
        """Those of a round."""
        explore, seed = run.config.explore, run.config.start.seed
        structures, names = starts_of(run, round_number)
        systems = [system_of(one) for one in structures]
        require_periodic(explore, systems, names)
        replicas = replicas_of(explore, len(systems), seed, round_number)
        return cls(structures, names, batches_of(explore, systems, replicas, run.device.type))


def starts_of(run: RunFolder, round_number: int) -> tuple[list[UnlabelledStructure], list[str]]:
    """The structures that replicas begin with: the starting ones, or as many drawn from the labelled frames."""
    structures = read_structures(run.place(0, "start") / STRUCTURES)
    files = run.labelled(round_number)
    if run.config.explore.begin == "start" or not files:
        known = StageFolder(run.place(0, "start"), {}).result or {}
        return structures, list(known["names"])
    pool = [(one, f"{name}, frame {k}") for name, path in files.items() for k, one in enumerate(read_structures(path))]
    rng = np.random.default_rng([run.config.start.seed, 3, round_number])
    drawn = rng.choice(len(pool), len(structures), replace=len(pool) < len(structures))
    return [pool[k][0] for k in drawn], [pool[k][1] for k in drawn]


def explore(run: RunFolder, round_number: int) -> Result:
    """Runs all replicas of a round; the results are those of `_summary`."""
    potential_file = run.potential(round_number)
    assert potential_file is not None
    settings = run.settings("explore", "uncertainty", "start.seed")
    files = {f"round-000/start/{STRUCTURES}": run.place(0, "start") / STRUCTURES, **run.hashed(potential_file)}
    if isinstance(potential_file, str):
        settings |= run.settings("start.checkpoint")
    if run.config.explore.begin == "labelled":
        files |= run.labelled(round_number)
    stage = run.stage(round_number, "explore", settings, files)
    if (done := stage.result) is not None:
        return done
    potential = run.load(potential_file)
    require_uncertain(potential, run.config.uncertainty.kind, str(potential_file))
    found = _run_batches(run, stage, potential_file, potential, Beginnings.of(run, round_number))
    result = _summary(found)
    if not result["frames"]:
        raise ValueError(
            f"an exploration must find frames, got none in {counted(result['replicas'], 'replica')}: "
            f"{result['error'] or 'the potential fails at the beginning'}; begin with more labels (start.count)"
        )
    run.say(f"explore: {said(result, run.config.threshold, run.config.uncertainty.unit)}")
    return stage.finish(result, [path.name for path in batch_files(stage.folder)])


def _run_batches(
    run: RunFolder, stage: StageFolder, file: Path | str, potential: Potential | Ensemble, begun: Beginnings
) -> list[tuple[Explored, str]]:
    """Runs the batches that are not complete, here or on a cluster; returns all, with their errors."""
    config, line = run.config.explore, ProgressLine(sys.stderr)
    systems = [system_of(one) for one in begun.structures]
    batches = {stage.folder / f"batch-{k:03d}.npz": batch for k, batch in enumerate(begun.batches)}

    def note(done: float) -> None:
        """Draws the progress; done: batches."""
        share = done / len(batches)
        if line.due():
            line.draw("  ".join([bar(share)] * line.on_terminal + [f"{share:4.0%}", "steps"]))

    try:
        with line.taking_messages():
            if config.dask is None:
                _explore_here(run, potential, systems, batches, note)
            else:
                explore_there(run, file, systems, batches, note)
    except StoppedBySignal:
        stage.pause()
        raise
    finally:
        line.finish()
    loaded = [Explored.load(path, batch) for path, batch in batches.items()]
    return [(explored, str(more["error"])) for explored, more in loaded]


def _explore_here(
    run: RunFolder,
    potential: Potential | Ensemble,
    systems: list[System],
    batches: dict[Path, list[Replica]],
    note: Callable[[float], None],
) -> None:
    config = run.config.explore
    for k, (path, batch) in enumerate(batches.items()):
        one = BatchRun(
            config,
            run.config.threshold,
            batch,
            path,
            lambda batch=batch: dynamics_of(config, potential, systems, batch),  # type: ignore[misc]
        )
        if not one.run(run.interrupted, lambda step, k=k: note(k + step / config.steps), lambda: None):  # type: ignore[misc]
            raise StoppedBySignal


def batch_files(folder: Path) -> list[Path]:
    """The files of the frames of all batches."""
    return sorted(path for path in folder.glob("batch-*.npz") if path.name.count(".") == 1)


def read_frames(
    run: RunFolder, round_number: int, begun: Beginnings
) -> list[tuple[FoundFrame, Replica, UnlabelledStructure]]:
    """All frames of a round, with their replicas and structures."""
    found = []
    for path, batch in zip(batch_files(run.place(round_number, "explore")), begun.batches, strict=True):
        explored, _ = Explored.load(path, batch)
        for frame in explored.frames:
            found.append((frame, batch[frame.replica], explored.structure(frame, begun.structures)))
    return found


def _summary(found: Sequence[tuple[Explored, str]]) -> Result:
    values = np.array([frame.uncertainty for explored, _ in found for frame in explored.frames])
    endings = Counter(ending for explored, _ in found for ending in explored.endings)
    lasted = [steps for explored, _ in found for steps in explored.lasted]
    curve = [quantile(values, share) for share in np.linspace(0, 1, 21)] if len(values) else []
    return {
        "replicas": len(lasted),
        "batches": len(found),
        "frames": len(values),
        "uncertainty": quantile(values, SHARE) if len(values) else None,
        "median": quantile(values, 0.5) if len(values) else None,
        "quantiles": curve,
        "endings": {name: endings[name] for name in (WHOLE, THRESHOLD, FAILED)},
        "branched": sum(sum(explored.branched) for explored, _ in found),
        "steps": sum(lasted),
        "mean_steps": float(np.mean(lasted)),
        "error": next((error for _, error in found if error), ""),
    }


def said(result: Result, threshold: float, unit: str) -> str:
    """The results in a line."""
    ends = result["endings"]
    parts = [f"{ends[WHOLE]} of {counted(result['replicas'], 'replica')} ran to the end"]
    parts += [f"{ends[THRESHOLD]} went over {threshold:g} {unit}"] * bool(ends[THRESHOLD])
    parts += [f"{ends[FAILED]} failed"] * bool(ends[FAILED])
    parts += [f"{counted(result['branched'], 'branch', 'branches')}"] * bool(result["branched"])
    return (
        f"{counted(result['frames'], 'frame')}, uncertainty {number(result['median'])} {unit} (median), "
        f"{number(result['uncertainty'])} (95 %); {', '.join(parts)}"
    )
