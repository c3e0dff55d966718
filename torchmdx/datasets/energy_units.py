"""Guesses the unit of total energies from the energies of neutral atoms."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from torchmdx.datasets.frames import Frames
from torchmdx.structures.units import HARTREE, KCAL_PER_MOL, KJ_PER_MOL

# In eV.
UNITS = {"hartree": HARTREE, "rydberg": HARTREE / 2, "kcal/mol": KCAL_PER_MOL, "kJ/mol": KJ_PER_MOL, "meV": 1e-3}
NEAR = 0.04  # relative tolerance of a ratio
LIGHTEST = 3  # of the elements that must be there: hydrogen has too little energy of its own to tell


def atom_energies(atomic_numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """Total energies of neutral atoms, eV, to 1 % for C and heavier: the Thomas-Fermi, Scott and Schwinger terms."""
    z = atomic_numbers.astype(np.float64)
    found: NDArray[np.float64] = -HARTREE * (0.768745 * z ** (7 / 3) - 0.5 * z**2 + 0.2699 * z ** (5 / 3))
    return found


def depth(frames: Frames) -> NDArray[np.float64]:
    """Energies [F] over those of the neutral atoms: near 1 for energies of all electrons in eV; NaN for hydrogen."""
    atoms = np.add.reduceat(atom_energies(frames.atomic_numbers), frames.offsets[:-1])
    heavy = np.maximum.reduceat(frames.atomic_numbers, frames.offsets[:-1]) >= LIGHTEST
    ratio: NDArray[np.float64] = np.where(heavy, frames.energy / atoms, np.nan)
    return ratio


def unit_of(ratio: float) -> str | None:
    """The unit in which energies are that were read as eV and are `ratio` times those of eV; None if none fits."""
    return next((name for name, way in _ways() if abs(ratio / way - 1) < NEAR), None)


def _ways() -> Iterator[tuple[str, float]]:
    for name, size in UNITS.items():
        yield name, 1 / size


def unit_between(ratio: float) -> str | None:
    """What was mistaken for what if energies are `ratio` times those of other frames: "in kcal/mol, others in eV"."""
    for name, size in UNITS.items():
        if abs(ratio * size - 1) < NEAR:
            return f"in {name} and the others in eV"
        if abs(ratio / size - 1) < NEAR:
            return f"in eV and the others in {name}"
    return None
