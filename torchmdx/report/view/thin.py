"""Limits of a page: which frames and which atoms are drawn, and a sentence about the rest."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchmdx.report.view.bonds import Molecules

Integers = NDArray[np.int64]

MOST_FRAMES = 1000
MOST_ATOMS = 6000
# Positions of all frames together, at 8 bytes each in the page. Frames of different structures need their bonds too.
MOST_POSITIONS, MOST_MIXED_POSITIONS = 400_000, 100_000
MOST_POINTS = 2000  # of a curve


def frames_to_show(num_frames: int, num_atoms: float, *, mixed: bool = False) -> Integers:
    """Indices of the frames to draw: the first, others at equal distances, and the last. num_atoms: mean of a frame."""
    positions = MOST_MIXED_POSITIONS if mixed else MOST_POSITIONS
    most = int(positions / min(max(num_atoms, 1), MOST_ATOMS))
    gaps = max(2, min(most, MOST_FRAMES)) - 1
    stride = max(1, -(-(num_frames - 1) // gaps))
    return np.union1d(np.arange(0, num_frames, stride), np.arange(num_frames)[-1:])


def evenly(number: int, most: int) -> Integers:
    """At most `most` of the indices below `number`, evenly spaced, with the first and the last."""
    if number <= most:
        return np.arange(number)
    return np.unique(np.linspace(0, number - 1, most).round().astype(np.int64))


def atoms_to_show(numbers: Integers, found: Molecules, most: int = MOST_ATOMS) -> tuple[Integers, str | None]:
    """Indices of the atoms to draw, and a sentence about those left out: water, then hydrogen, then whole molecules."""
    every = np.arange(len(numbers))
    if len(numbers) <= most:
        return every, None
    water = _is_water(numbers, found)[found.of]
    for kept, what in (
        (every[~water], "water is left out"),
        (every[~water & (numbers != 1)], "water and hydrogen are left out" if water.any() else "hydrogen is left out"),
    ):
        if 0 < len(kept) <= most:
            return kept, _sentence(len(kept), len(numbers), what)
    sizes = np.bincount(found.of)
    chosen = evenly(found.number, max(1, int(most / sizes.mean())))
    while sizes[chosen].sum() > most and len(chosen) > 1:
        chosen = evenly(found.number, len(chosen) * most // int(sizes[chosen].sum()) or 1)
    if sizes[chosen].sum() <= most:
        kept = every[np.isin(found.of, chosen)]
        return kept, _sentence(len(kept), len(numbers), f"{len(chosen):,} of {found.number:,} molecules")
    heavy = every[numbers != 1]
    kept = (heavy if len(heavy) else every)[evenly(len(heavy) or len(every), most)]
    return kept, _sentence(len(kept), len(numbers), "evenly spaced in the file")


def _is_water(numbers: Integers, found: Molecules) -> NDArray[np.bool_]:
    """Whether each molecule is H2O."""
    sizes = np.bincount(found.of, minlength=found.number)
    hydrogens = np.bincount(found.of[numbers == 1], minlength=found.number)
    oxygens = np.bincount(found.of[numbers == 8], minlength=found.number)
    return np.asarray((sizes == 3) & (hydrogens == 2) & (oxygens == 1))


def _sentence(kept: int, number: int, what: str) -> str:
    return f"{kept:,} of {number:,} atoms are drawn: {what}."
