"""The stages that label and train, and the one before the first round. Each returns its results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from torchmdx.checkpoints.run_folder import BEST, TOGETHER
from torchmdx.datasets.conversion import convert
from torchmdx.datasets.labelling.calculators import Choice
from torchmdx.datasets.labelling.run import Crew, Paths, label
from torchmdx.datasets.labelling.sources import StructureFiles
from torchmdx.datasets.labelling.workers import usable_cores
from torchmdx.datasets.store import Store
from torchmdx.learning.config import LearnConfig
from torchmdx.learning.fresh import errors_on
from torchmdx.learning.run_folder import CHOSEN, LABELLED, POTENTIAL, STRUCTURES, RunFolder, StoppedBySignal
from torchmdx.learning.stage import StageFolder
from torchmdx.learning.structures import (
    first_frames,
    read_structures,
    starting_structures,
    write_structures,
)
from torchmdx.report.style import require_matplotlib
from torchmdx.runtime.files import write_whole
from torchmdx.runtime.wording import counted, number
from torchmdx.training.config import Config
from torchmdx.training.data_section import files_of
from torchmdx.training.open_data import open_store
from torchmdx.training.resuming import begun
from torchmdx.training.run import train

TRAINING, STORE = "training", "labelled.store"
Result = dict[str, Any]


def require_possible(config: LearnConfig) -> None:
    """Raises for settings that cannot be used, before anything is written."""
    Choice(config.label.calculator, dict(config.label.options)).require()
    if config.train.report:
        require_matplotlib()


def start(run: RunFolder) -> Result:
    """Writes the structures to explore from, and the frames to label before the first round."""
    section = run.config.start
    names = [*(files_of(section.structures) or []), *(files_of(section.data) or [])]
    files = {name: Path(name) for name in names if Path(name).is_file()}
    settings = run.settings("start") | {"select.count": run.config.first_labels}
    stage = run.stage(0, "start", settings, files)
    if (done := stage.result) is not None:
        return done
    structures, titles = starting_structures(section)
    write_structures(stage.folder / STRUCTURES, structures)
    outputs = [STRUCTURES]
    if run.config.first_labels:
        first = first_frames(read_structures(stage.folder / STRUCTURES), section, run.config.first_labels)
        write_structures(stage.folder / CHOSEN, first)
        outputs.append(CHOSEN)
    frames = run.config.first_labels
    run.say(f"start: {counted(len(structures), 'structure')}, {counted(frames, 'frame')} to label first")
    return stage.finish({"names": titles, "frames": frames}, outputs)


def label_frames(run: RunFolder, round_number: int, chosen: Path, controls: list[int]) -> Result:
    """Labels frames, and measures the errors of the potential before them.

    Args:
        controls: Places in `chosen` of frames that were drawn at random; errors are reported of these too.
    """
    before = run.potential(round_number)
    settings = run.settings("label") | {"frames drawn at random": controls}
    if isinstance(before, str):
        settings |= run.settings("start.checkpoint")
    files = {str(chosen.relative_to(run.folder)): chosen, **run.hashed(before)}
    stage = run.stage(round_number, "label", settings, files)
    if (done := stage.result) is not None:
        return done
    failures = _label(run, stage, chosen)
    labelled = stage.folder / LABELLED
    convert([labelled], stage.folder / STORE, broken="skip", overwrite=True, log=lambda text: None)
    store = Store.open(stage.folder / STORE)
    errors = None if before is None else errors_on(run.load(before), store, labelled, controls)
    failed = f", {len(failures)} failed: {failures[0]}" if failures else ""
    said = "" if errors is None else f"; forces of the potential before them: {_said(errors['all'])}"
    run.say(f"label: {counted(len(store), 'frame')}{failed}{said}")
    return stage.finish({"labels": len(store), "failures": failures, "errors": errors}, [LABELLED])


def _label(run: RunFolder, stage: StageFolder, chosen: Path) -> list[str]:
    """Writes the labelled file; returns what failed. Raises ValueError if everything did."""
    section, output = run.config.label, stage.folder / LABELLED
    if output.exists() and not Paths(output).journal.exists():
        return []  # it was complete, without failures, when the process was killed
    choice = Choice(section.calculator, dict(section.options))
    workers = section.workers or choice.num_workers or usable_cores()
    summary = label(
        StructureFiles((chosen,)),
        output,
        choice,
        crew=Crew(workers, section.timeout, sys.stderr, run.interrupted, section.dask),
        retry_failed=True,
    )
    if not summary.complete:
        stage.pause()
        raise StoppedBySignal
    failures = [f"{Path(one.origin).name}: {one.reason}" for one in summary.failures]
    if not summary.num_labelled:
        raise ValueError(
            f"the calculator {section.calculator} must give labels, got none for "
            f"{counted(summary.num_frames, 'frame')}: {failures[0]}; the same command tries again"
        )
    return failures


def _said(errors: dict[str, Any]) -> str:
    said = f"{number(1e3 * errors['force_rmse'])} meV/Å RMSE"
    if errors["ratio"] is None:
        return said
    return f"{said}; errors of frames are {number(errors['ratio'])} times their uncertainties"


def train_potential(run: RunFolder, round_number: int) -> Result:
    """Trains on all labels so far; the result is POTENTIAL in the folder of the stage and of the run."""
    files = run.labelled(round_number + 1)
    data = files_of(run.config.start.data) or []
    before = run.potential(round_number)
    warm = run.config.train.start == "warm" and round_number > 0
    base = before if warm else run.config.start.checkpoint
    settings = run.settings("train", "uncertainty") | (run.settings("start.checkpoint") if base is not None else {})
    read = {**{name: Path(name) for name in data}, **files, **(run.hashed(before) if warm else {})}
    stage = run.stage(round_number, "train", settings, read)
    if (done := stage.result) is not None:
        return done
    folder, several = stage.folder / TRAINING, run.config.uncertainty.num_potentials > 1
    resume = bool(begun(folder)) if folder.exists() else False
    if not resume:
        stage.empty()
    config = _training(run, folder, [*data, *map(str, files.values())], base)
    if train(config, resume, run.interrupts):
        stage.pause()
        raise StoppedBySignal
    content = (folder / (TOGETHER if several else BEST)).read_bytes()
    write_whole(stage.folder / POTENTIAL, content)
    write_whole(run.folder / POTENTIAL, content)
    return stage.finish({"files": len(files), "warm": warm}, [POTENTIAL])


def _training(run: RunFolder, folder: Path, files: list[str], base: Path | str | None) -> Config:
    """The configuration of a training in a folder, whose store it makes."""
    # Members continue from their own potentials.
    several = run.config.uncertainty.num_potentials > 1
    checkpoint = str(base.parent / TRAINING) if several and isinstance(base, Path) else base
    checkpoint = None if checkpoint is None else str(checkpoint)
    config = run.config.training(str(folder), files, checkpoint)
    folder.mkdir(parents=True, exist_ok=True)
    frames = len(open_store(config.data, folder, update=False))
    return run.config.training(str(folder), files, checkpoint, frames)
