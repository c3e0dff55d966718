"""Splits of a store into training, validation and test, recorded in files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.datasets.store import Store
from torchmdx.runtime.damaged_file import WRONG_VALUES, parse_json
from torchmdx.runtime.files import write_whole
from torchmdx.runtime.wording import counted

PARTS = ("train", "validation", "test")
DRAWN = PARTS[::-1]  # test first: it stays the same when the others change size
FORMAT = "torchmdx-split"
GROUPINGS = ("frame", "formula", "file")
Split = dict[str, NDArray[np.int64]]


def split(
    store: Store,
    *,
    train: float | int | None = None,
    validation: float | int = 0.1,
    test: float | int = 0,
    seed: int = 0,
    by: str = "frame",
    among: NDArray[np.int64] | None = None,
) -> Split:
    """Sorted, disjoint frames of each part, drawn at random from `seed`.

    An integer is a count, a number below one a fraction of all frames; train None: all remaining frames.

    Args:
        by: "frame", or "formula" or "file", whose frames then stay together: a part takes whole groups until it has at
            least the requested number. Copies of a structure stay together as well: by "file", all of them join that
            part of theirs which is drawn first.
        among: Frames to draw from; None: all. Isolated atoms, which only give reference energies, are never drawn.

    Raises:
        ValueError: For empty parts, and if there are too few frames.
    """
    if by not in GROUPINGS:
        raise ValueError(f"a split must be by {', '.join(GROUPINGS)}, got {by!r}")
    pool = np.arange(len(store)) if among is None else np.asarray(among, np.int64)
    pool = pool[~store.isolated[pool]]
    total = len(pool)
    wanted = {name: count_of(name, size, total) for name, size in (("validation", validation), ("test", test))}
    left = total - sum(wanted.values())
    wanted["train"] = left if train is None else count_of("train", train, total)
    if wanted["train"] < 1 or wanted["train"] > left:
        asked = ", ".join(f"{name} {wanted[name]}" for name in PARTS)
        raise ValueError(f"train must be at least 1 and the parts at most the {total} frames of the store, got {asked}")
    generator = np.random.default_rng(seed)
    copies = np.unique(store.copies[pool], return_inverse=True)[1].reshape(-1)
    if by == "frame" and len(np.unique(copies)) == total:
        order = generator.permutation(total)
        ends = np.cumsum([wanted[name] for name in DRAWN])
        drawn = dict(zip(DRAWN, np.split(order, ends)[:3], strict=True))
    else:
        if train is None:
            del wanted["train"]
        groups = copies if by == "frame" else np.unique(_groups(store, by)[pool], return_inverse=True)[1].reshape(-1)
        drawn = join_copies(_by_groups(groups, wanted, generator, by), copies)
    return {name: np.sort(pool[drawn[name]]).astype(np.int64) for name in PARTS}


def count_of(name: str, size: float | int, total: int) -> int:
    """The number of frames of a part, from a count or a fraction. Raises ValueError for anything else."""
    if isinstance(size, bool) or not isinstance(size, (int, float)) or not math.isfinite(size) or size < 0:
        raise ValueError(f"{name} must be a count or a fraction of frames, got {size!r}")
    if isinstance(size, int):
        return size
    if size >= 1:
        raise ValueError(f"{name} must be a whole number, or a fraction below 1, got {size}")
    count = round(size * total)
    if size > 0 and count == 0:
        raise ValueError(f"{name} must be at least one frame, got {size} of {total} frames")
    return count


def _groups(store: Store, by: str) -> NDArray[np.int64]:
    """A group index for each frame; frames of one group stay together."""
    if by == "file":
        keys = [store.origin(index)[0] for index in range(len(store))]
    else:
        keys = []
        for start in range(0, len(store), 4096):
            frames = store.gather(np.arange(start, min(start + 4096, len(store))))
            parts = np.split(frames.atomic_numbers, np.cumsum(frames.counts)[:-1])
            keys += [np.sort(numbers).astype(np.uint8).tobytes().hex() for numbers in parts]
    return np.unique(keys, return_inverse=True)[1].astype(np.int64)


def _by_groups(groups: NDArray[np.int64], wanted: dict[str, int], generator: np.random.Generator, by: str) -> Split:
    """Assigns whole groups to the parts in turn; train gets the remaining ones if it is not in `wanted`."""
    order = generator.permutation(groups.max() + 1)
    sizes = np.bincount(groups)
    part_of = np.full(len(sizes), -1)
    queue = iter(order)
    for number, name in enumerate(DRAWN):
        if name not in wanted:
            wanted = wanted | {name: max(1, int(sizes[part_of < 0].sum()))}
        have = 0
        while have < wanted[name]:
            group = next(queue, None)
            if group is None:
                raise ValueError(
                    f"a split by {by} needs more groups than the {len(sizes)} of this store: "
                    f"{name} has {have} of the {wanted[name]} requested frames"
                )
            part_of[group] = number
            have += int(sizes[group])
    return {name: np.flatnonzero(part_of[groups] == k) for k, name in enumerate(DRAWN)}


def join_copies(drawn: Split, copies: NDArray[np.int64]) -> Split:
    """The same parts, but for copies: all of them join the part that has one of them and is drawn first."""
    part_of = np.full(len(copies), len(DRAWN))
    for number, name in enumerate(DRAWN):
        part_of[drawn[name]] = number
    first = np.full(copies.max() + 1, len(DRAWN))
    np.minimum.at(first, copies, part_of)
    moved = np.where(part_of < len(DRAWN), first[copies], part_of)
    return {name: np.flatnonzero(moved == number) for number, name in enumerate(DRAWN)}


def remarks_on_copies(store: Store, parts: Split) -> list[str]:
    """How many copies of a structure there are, and where; warnings about copies in different parts."""
    groups = store.copies
    frames = np.concatenate([parts[name] for name in PARTS if name in parts])
    said = []
    others = np.setdiff1d(np.flatnonzero(~store.isolated), frames)
    left_out = int(np.isin(groups[others], groups[frames]).sum())
    if left_out:
        said.append(f"{counted(left_out, 'frame')} left out, with the same structure as frames of a part")
    repeated = len(frames) - len(np.unique(groups[frames]))
    if repeated:
        said.append(f"{counted(repeated, 'frame')} of {len(frames)} with the same structure as another frame")
    for number, name in enumerate(PARTS):
        for other in PARTS[number + 1 :]:
            both = int(np.isin(groups[parts.get(other, frames[:0])], groups[parts.get(name, frames[:0])]).sum())
            if both:
                said.append(
                    f"warning: {counted(both, 'frame')} of {other} with the same structure as frames of {name}: errors "
                    f"on {other} will be too small"
                )
    return said


def write_split(path: str | Path, splits: Split, store: Store) -> None:
    """Writes the parts to a JSON file, atomically."""
    path = Path(path)
    content = {"format": FORMAT, "digest": store.digest, "num_frames": len(store)}
    content |= {name: splits[name].tolist() for name in PARTS if name in splits}
    write_whole(path, (json.dumps(content) + "\n").encode())


def read_split(path: str | Path, store: Store) -> Split:
    """The parts in a file of `write_split`.

    Raises:
        ValueError: For one of another store, or with frames in two parts.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no split at {str(path)!r}")
    try:
        content = parse_json(path.read_text())
        splits = {name: np.sort(_frames_of(content.get(name, []))) for name in PARTS}
        kind, digest = content.get("format"), content.get("digest")
    except (ValueError, *WRONG_VALUES) as error:
        raise ValueError(f"{str(path)!r} is not a readable split: {error}") from error
    if kind != FORMAT:
        raise ValueError(f"{str(path)!r} is not a split: its format must be {FORMAT!r}, got {kind!r}")
    if digest != store.digest:
        raise ValueError(f"the split {str(path)!r} was made for other data than the store {str(store.path)!r}")
    everything = np.concatenate(list(splits.values()))
    outside = len(everything) and (everything.min() < 0 or everything.max() >= len(store))
    if len(np.unique(everything)) != len(everything) or outside:
        raise ValueError(f"the parts of {str(path)!r} must be disjoint frames below {len(store)}")
    return splits


def _frames_of(values: Any) -> NDArray[np.int64]:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise ValueError("parts must be lists of whole numbers")
    return np.array(values, np.int64)
