"""What all properties need: a crystal with a calculator, copies of it that are relaxed, supercells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.structures.total_charge import charge_of

if TYPE_CHECKING:
    from ase import Atoms

LEAST_HEIGHT = 10.0  # Å, of a supercell
RELAX_STEPS = 500


def require_crystal(atoms: Atoms) -> None:
    """Raises ValueError for a structure that is not periodic in all directions, has no calculator, or is charged."""
    if not len(atoms) or not atoms.pbc.all() or atoms.cell.rank < 3:
        raise ValueError(
            f"properties of crystals need atoms periodic in all directions, got {len(atoms)} atoms with pbc "
            f"{atoms.pbc.tolist()} and a cell of rank {atoms.cell.rank}"
        )
    if atoms.calc is None:
        raise ValueError("properties of crystals need atoms with a calculator, got none")
    charge, origin = charge_of(atoms)
    if charge:
        raise ValueError(f"properties of crystals need a neutral cell, got charge {charge:+g} ({origin})")


def changed(atoms: Atoms, cell: NDArray[np.float64] | None = None) -> Atoms:
    """A copy with the same calculator and without constraints; with another cell, which its atoms follow."""
    copy = atoms.copy()
    copy.set_constraint()
    if cell is not None:
        copy.set_cell(cell, scale_atoms=True)
    copy.calc = atoms.calc
    return copy


def relaxed(atoms: Atoms, fmax: float, *, cell: bool = False) -> Atoms:
    """The atoms, moved to their minimum in the cell, or with it. Raises ValueError if they do not converge."""
    from ase.filters import FrechetCellFilter
    from ase.optimize import FIRE, LBFGS

    target: Any = FrechetCellFilter(atoms) if cell else atoms
    optimizers: tuple[Any, ...] = (LBFGS, FIRE)  # FIRE gets out of trouble
    for optimizer in optimizers:
        with optimizer(target, logfile=None) as run:
            if run.run(fmax=fmax, steps=RELAX_STEPS):
                return atoms
    largest = float(np.linalg.norm(target.get_forces(), axis=1).max())
    raise ValueError(
        f"{atoms.get_chemical_formula()} must relax to {fmax} eV/Å, got {largest:.3g} after {2 * RELAX_STEPS} steps"
    )


def supercell_of(atoms: Atoms, given: Sequence[int] | None) -> tuple[int, int, int]:
    """How often the cell is repeated: as given, otherwise by `repeats_of`. Raises ValueError for other than counts."""
    if given is None:
        return repeats_of(atoms)
    if len(given) != 3 or not all(isinstance(count, int | np.integer) and count >= 1 for count in given):
        raise ValueError(f"supercell must be three numbers >= 1, got {given}")
    return int(given[0]), int(given[1]), int(given[2])


def repeats_of(atoms: Atoms, least: float = LEAST_HEIGHT) -> tuple[int, int, int]:
    """How often the cell is repeated so that opposite faces are at least `least` Å apart."""
    heights = 1 / np.linalg.norm(np.linalg.inv(atoms.cell.array), axis=0)
    first, second, third = np.maximum(1, np.ceil(least / heights - 1e-6)).astype(int).tolist()
    return first, second, third
