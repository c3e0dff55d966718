"""Frames of blocks that can be used, in our units, and the reasons why others cannot; many frames at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchmdx.datasets.blocks import Blocks, FrameBlock, Remark, Stated, Unreadable
from torchmdx.datasets.checks import CLOSEST, broken, in_our_units, missing, nearest
from torchmdx.datasets.frames import Frames
from torchmdx.datasets.units import Units

TOGETHER, ATOMS_TOGETHER = 512, 1 << 15  # frames and atoms that are checked at once


@dataclass(frozen=True, eq=False)
class Usable:
    """Frames that can be used, in eV and Å, with their numbers in the file.

    Attributes:
        whole, distance, pair: Those and frames whose only fault is that atoms are too close, with the nearest pair of
            each.
        count: Frames that were looked at.
        broken: The reason by number.
        missing: Labels that are NaN, by quantity.
    """

    frames: Frames
    numbers: NDArray[np.int64]
    whole: Frames
    distance: NDArray[np.float64]
    pair: NDArray[np.int64]
    count: int
    broken: dict[int, str]
    missing: dict[str, int]


def usable(block: FrameBlock, units: Units, unlabelled: bool) -> Usable:
    """Checks a block."""
    frames = in_our_units(block, units)
    wrong = broken(frames, block.claimed, unlabelled)
    absent = {name: int(where.sum()) for name, where in missing(frames, block.claimed).items()}
    numbers = block.first + np.arange(len(frames), dtype=np.int64)
    kept = np.array([k for k in range(len(frames)) if k not in wrong], np.int64)
    whole = taken = frames.take(kept) if wrong else frames
    distance, pair = nearest(whole)
    for k in np.flatnonzero(distance < CLOSEST):
        wrong[int(kept[k])] = f"two atoms must be at least {CLOSEST} Å apart, got {distance[k]:.3g} Å"
    good = distance >= CLOSEST
    if not good.all():
        kept = kept[good]
        taken = frames.take(kept)
    reasons = {int(numbers[k]): wrong[k] for k in sorted(wrong)}
    return Usable(taken, numbers[kept], whole, distance, pair, len(frames), reasons, absent)


def joined(blocks: Blocks) -> Blocks:
    """The same blocks, consecutive ones with the same labels as one, because small ones take long to check."""
    waiting: list[FrameBlock] = []
    frames = atoms = 0

    def flushed() -> Iterator[FrameBlock]:
        if waiting:
            whole = waiting[0].frames
            if len(waiting) > 1:
                whole = Frames.concatenate([one.frames for one in waiting])
            yield FrameBlock(waiting[0].first, whole, waiting[0].claimed)
            waiting.clear()

    for found in blocks:
        if isinstance(found, (Remark, Stated, Unreadable)):
            yield from flushed()
            yield found
            frames = atoms = 0
            continue
        fits = waiting and found.claimed == waiting[0].claimed and found.first == waiting[0].first + frames
        if waiting and not (fits and frames < TOGETHER and atoms < ATOMS_TOGETHER):
            yield from flushed()
        if not waiting:
            frames = atoms = 0
        waiting.append(found)
        frames, atoms = frames + len(found.frames), atoms + found.frames.num_atoms
    yield from flushed()
