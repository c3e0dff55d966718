"""The stage of selection: which frames of an exploration are labelled, and a map of what was explored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.datasets.labelling.sampling import collide
from torchmdx.datasets.store import Store
from torchmdx.learning.exploring import Beginnings, batch_files, read_frames
from torchmdx.learning.run_folder import CHOSEN, RunFolder
from torchmdx.learning.select import RANDOM, choose, describe, vectors
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


def select(run: RunFolder, round_number: int, most: int | None) -> Result:
    """Chooses the frames of a round to label, at most `most`, and writes CHOSEN unless there are none."""
    section, config = run.config.select, run.config
    folder, labelled = run.place(round_number, "explore"), run.labelled(round_number)
    before = run.potential(round_number)
    assert before is not None
    files = {f"{folder.parent.name}/explore/{path.name}": path for path in batch_files(folder)}
    settings = run.settings("select", "start.seed") | {"threshold": config.threshold}
    stage = run.stage(round_number, "select", settings, files | labelled | run.hashed(before))
    if (done := stage.result) is not None:
        return done
    begun = Beginnings.of(run, round_number)
    frames = read_frames(run, round_number, begun)
    uncertainty = np.array([frame.uncertainty for frame, _, _ in frames])
    broken = ~(uncertainty <= config.broken)
    near = np.array([not out and collide(one, section.closest) for (_, _, one), out in zip(frames, broken, strict=True)])
    usable = np.flatnonzero(~broken & ~near)
    order = np.random.default_rng([config.start.seed, 4, round_number]).permutation(usable)
    pool = pool_of(usable, uncertainty, order)
    potential = run.load(before)
    known = describe(potential, _known(run, round_number))
    seen = describe(potential, [system_of(frames[k][2]) for k in pool.tolist()])
    rows = vectors([*seen, *known], [*seen, *known]) if seen else np.zeros((len(known), 1))
    places = {k: place for place, k in enumerate(pool.tolist())}
    count = section.count if most is None else min(section.count, most)
    chosen, doubles = choose(
        rows[: len(seen)],
        uncertainty[pool],
        rows[len(seen) :],
        count=count,
        num_random=section.random,
        order=[places[k] for k in order.tolist() if k in places],
        diversity=section.diversity,
        duplicates=section.duplicates,
        least=section.least,
    )
    taken = [int(pool[one.place]) for one in chosen]
    result = {
        "frames": len(frames),
        "broken": int(broken.sum()),
        "too_close": int(near.sum()),
        "compared": len(pool),
        "duplicates": len(doubles),
        "chosen": [
            {
                "structure": begun.names[frames[k][1].structure],
                "temperature": frames[k][1].temperature,
                "pressure": frames[k][1].pressure,
                "replica": frames[k][1].copy,
                "step": frames[k][0].step,
                "uncertainty": float(uncertainty[k]),
                "why": one.why,
                "distance": one.distance if np.isfinite(one.distance) else None,
            }
            for k, one in zip(taken, chosen, strict=True)
        ],
    }
    write_json(stage.folder / MAP, map_of(rows, len(seen), uncertainty[pool], [one.place for one in chosen]))
    if taken:
        write_structures(stage.folder / CHOSEN, [frames[k][2] for k in taken])
    run.say(f"select: {said(result)}")
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


def said(result: Result) -> str:
    """The results in a line."""
    chosen = result["chosen"]
    drawn = sum(one["why"] == RANDOM for one in chosen)
    parts = [f"{result['broken']} too uncertain"] * bool(result["broken"])
    parts += [f"{result['too_close']} with atoms too close"] * bool(result["too_close"])
    parts += [f"{result['duplicates']} like labelled ones"] * bool(result["duplicates"])
    left = f" ({', '.join(parts)} left out)" if parts else ""
    random = f", {drawn} of them at random" if drawn else ""
    spread = [one["uncertainty"] for one in chosen]
    of = f", uncertainty {number(min(spread))} to {number(max(spread))} eV/Å" if spread else ""
    return f"{len(chosen)} of {counted(result['frames'], 'frame')}{random}{of}{left}"
