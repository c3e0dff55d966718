"""The stage of selection: which frames of an exploration are labelled, and a map of what was explored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.datasets.labelling.geometry import UnlabelledStructure
from torchmdx.datasets.labelling.sampling import collide
from torchmdx.datasets.store import Store
from torchmdx.learning.explored import FoundFrame
from torchmdx.learning.exploring import Beginnings, batch_files, read_frames
from torchmdx.learning.replicas import Replica
from torchmdx.learning.run_folder import CHOSEN, RunFolder
from torchmdx.learning.select import RANDOM, Chosen, choose, describe, vectors
from torchmdx.learning.stage import write_json
from torchmdx.learning.stages import TRAINING
from torchmdx.learning.structures import system_of, write_structures
from torchmdx.runtime.wording import counted, number
from torchmdx.structures.system import System
from torchmdx.training.open_data import CONVERTED

Floats = NDArray[np.float64]
POOL = 1000  # frames that are compared: half of them the most uncertain, half drawn at random
MOST_KNOWN = 2000  # labelled frames that they are compared with
MOST_DRAWN = 300  # frames of a map
MAP = "map.json"
Result = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Candidates:
    """The frames of an exploration, which of them can be labelled, and a random order of these.

    Attributes:
        broken, near: [F], whether they are too uncertain, or have atoms too close.
    """

    names: list[str]
    frames: list[tuple[FoundFrame, Replica, UnlabelledStructure]]
    uncertainty: Floats
    broken: NDArray[np.bool_]
    near: NDArray[np.bool_]
    order: NDArray[np.int64]

    @classmethod
    def of(cls, run: RunFolder, round_number: int) -> Candidates:
        """Those of a round."""
        begun = Beginnings.of(run, round_number)
        frames = read_frames(run, round_number, begun)
        uncertainty = np.array([frame.uncertainty for frame, _, _ in frames])
        broken, closest = ~(uncertainty <= run.config.broken), run.config.select.closest
        sound = zip(frames, ~broken, strict=True)
        near = np.array([bool(good) and collide(one, closest) for (_, _, one), good in sound])
        usable = np.flatnonzero(~broken & ~near)
        order = np.random.default_rng([run.config.start.seed, 4, round_number]).permutation(usable)
        return cls(begun.names, frames, uncertainty, broken, near, order)

    def facts(self, place: int, one: Chosen) -> dict[str, Any]:
        """What is known of a chosen frame, as JSON values."""
        frame, replica, _ = self.frames[place]
        return {
            "structure": self.names[replica.structure],
            "temperature": replica.temperature,
            "pressure": replica.pressure,
            "replica": replica.copy,
            "step": frame.step,
            "uncertainty": frame.uncertainty,
            "why": one.why,
            "distance": one.distance if np.isfinite(one.distance) else None,
        }


def select(run: RunFolder, round_number: int, most: int | None) -> Result:
    """Chooses the frames of a round to label, at most `most`, and writes CHOSEN unless there are none."""
    section, explored = run.config.select, run.place(round_number, "explore")
    before = run.potential(round_number)
    assert before is not None
    files = {f"{explored.parent.name}/explore/{path.name}": path for path in batch_files(explored)}
    settings = run.settings("select", "start.seed") | {"threshold": run.config.threshold}
    stage = run.stage(round_number, "select", settings, files | run.labelled(round_number) | run.hashed(before))
    if (done := stage.result) is not None:
        return done
    found = Candidates.of(run, round_number)
    pool = pool_of(np.sort(found.order), found.uncertainty, found.order)
    potential = run.load(before)
    known = describe(potential, _known(run, round_number))
    seen = describe(potential, [system_of(found.frames[k][2]) for k in pool.tolist()])
    rows = vectors([*seen, *known], [*seen, *known]) if seen else np.zeros((len(known), 1))
    places = {k: place for place, k in enumerate(pool.tolist())}
    chosen, doubles = choose(
        rows[: len(seen)],
        found.uncertainty[pool],
        rows[len(seen) :],
        count=section.count if most is None else min(section.count, most),
        num_random=section.random,
        order=[places[k] for k in found.order.tolist() if k in places],
        diversity=section.diversity,
        duplicates=section.duplicates,
        least=section.least,
    )
    taken = [int(pool[one.place]) for one in chosen]
    result = {
        "frames": len(found.frames),
        "broken": int(found.broken.sum()),
        "too_close": int(found.near.sum()),
        "compared": len(pool),
        "duplicates": len(doubles),
        "chosen": [found.facts(k, one) for k, one in zip(taken, chosen, strict=True)],
    }
    write_json(stage.folder / MAP, map_of(rows, len(seen), found.uncertainty[pool], [one.place for one in chosen]))
    if taken:
        write_structures(stage.folder / CHOSEN, [found.frames[k][2] for k in taken])
    run.say(f"select: {said(result, run.config.uncertainty.unit)}")
    return stage.finish(result, [*([CHOSEN] if taken else []), MAP])


def pool_of(usable: NDArray[np.int64], uncertainty: Floats, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of the usable frames at most POOL, in their order: the most uncertain ones, and others in a random order."""
    if len(usable) <= POOL:
        return usable
    ranked = usable[np.argsort(-uncertainty[usable], kind="stable")]
    half = POOL // 2
    return np.unique(np.concatenate([order[:half], ranked[:half]]))


def _known(run: RunFolder, round_number: int) -> list[System]:
    """The frames that the potential was trained on, of many a sample; none of a base potential."""
    trained = [run.place(number, "train") / TRAINING / CONVERTED for number in reversed(range(round_number))]
    path = next((path for path in trained if Store.is_store(path)), None)
    if path is None:
        return []
    store = Store.open(path)
    places = np.flatnonzero(~store.isolated)
    if len(places) > MOST_KNOWN:
        places = np.sort(np.random.default_rng(run.config.start.seed).choice(places, MOST_KNOWN, replace=False))
    frames = store.gather(places)
    return [frames.system(k) for k in range(len(places))]


def map_of(rows: Floats, num_seen: int, uncertainty: Floats, chosen: Sequence[int]) -> dict[str, Any]:
    """Two principal components of frames: explored ones, of which many are thinned, labelled and chosen ones.

    `novelty` is the median distance of the explored frames to the nearest labelled one, None without labelled ones.
    """
    if not num_seen:
        return {"explored": [], "labelled": [], "chosen": [], "uncertainty": [], "share": 0.0, "novelty": None}
    known = rows[num_seen:]
    centred = rows - rows.mean(0)
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    plane = centred @ directions[:2].T
    plane = np.pad(plane, ((0, 0), (0, 2 - plane.shape[1])))
    every = np.unique(np.linspace(0, num_seen - 1, min(MOST_DRAWN, num_seen)).round().astype(int))
    total = float((sizes**2).sum())
    nearest = [float(np.linalg.norm(known - row, axis=1).min()) for row in rows[:num_seen]] if len(known) else []

    def points(indices: Any) -> list[list[float]]:
        return [[float(f"{value:.5g}") for value in row] for row in plane[indices]]

    return {
        "explored": points(every),
        "uncertainty": [float(f"{value:.5g}") for value in uncertainty[every]],
        "labelled": points(slice(num_seen, None)),
        "chosen": points(list(chosen)) if len(chosen) else [],
        "share": float((sizes[:2] ** 2).sum()) / total if total else 0.0,
        "novelty": float(np.median(nearest)) if nearest else None,
    }


def said(result: Result, unit: str) -> str:
    """The results in a line."""
    chosen = result["chosen"]
    drawn = sum(one["why"] == RANDOM for one in chosen)
    parts = [f"{result['broken']} too uncertain"] * bool(result["broken"])
    parts += [f"{result['too_close']} with atoms too close"] * bool(result["too_close"])
    parts += [f"{result['duplicates']} like labelled ones"] * bool(result["duplicates"])
    left = f" ({', '.join(parts)} left out)" if parts else ""
    random = f", {drawn} of them at random" if drawn else ""
    spread = [one["uncertainty"] for one in chosen]
    of = f", uncertainty {number(min(spread))} to {number(max(spread))} {unit}" if spread else ""
    return f"{len(chosen)} of {counted(result['frames'], 'frame')}{random}{of}{left}"
