"""The two ends of a path: checked, relaxed, and moved to fit."""

from __future__ import annotations

from typing import Any

import numpy as np
from ase import Atoms
from ase.build import minimize_rotation_and_translation
from ase.geometry import find_mic

from torchmdx.dynamics.relaxation.fire import FireSettings
from torchmdx.dynamics.relaxation.run import relax_each
from torchmdx.dynamics.relaxation.tasks import free_coordinates
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.structures.total_charge import charge_of

NEAR = 0.05  # Å: two ends of which no atom is farther apart are the same


def require_same_atoms(first: Atoms, last: Atoms, charge: float | None = None) -> None:
    """Raises ValueError for ends that no path can connect. charge: of both, instead of their own, e."""
    if len(first) != len(last):
        raise ValueError(f"both ends must have the same atoms, got {len(first)} and {len(last)} atoms")
    if len(first) == 0:
        raise ValueError("the ends of a path need at least one atom, got none")
    unlike = np.flatnonzero(first.numbers != last.numbers)
    if len(unlike):
        k = int(unlike[0])
        raise ValueError(
            "both ends must have the same atoms in the same order, got "
            f"{first.symbols[k]} and {last.symbols[k]} for atom {k}"
        )
    if not np.array_equal(first.pbc, last.pbc) or not np.allclose(first.cell, last.cell, atol=1e-6):
        raise ValueError(
            "both ends must have the same cell and periodic directions, got "
            f"{first.cell.cellpar().round(4).tolist()}, pbc {first.pbc.tolist()} and "
            f"{last.cell.cellpar().round(4).tolist()}, pbc {last.pbc.tolist()}"
        )
    if last.constraints and not np.array_equal(free_coordinates(first), free_coordinates(last)):
        raise ValueError("both ends must have the same fixed atoms, or the last end none; got different ones")
    charges = [charge_of(atoms, charge)[0] for atoms in (first, last)]
    if charges[0] != charges[1]:
        raise ValueError(
            f"both ends must have the same charge, got {charges[0]:+g} and {charges[1]:+g}; "
            "--charge, or charge=, sets it"
        )


def fitted(first: Atoms, last: Atoms) -> Atoms:
    """A copy of the last end with the constraints of the first, as near to it as possible.

    Atoms of periodic structures move by lattice vectors to their nearest images. Without fixed atoms, molecules are
    superimposed, and periodic structures shifted as a whole.

    Raises:
        ValueError: If an atom that is fixed in the first end is elsewhere in the last, and for ends that are the same.
    """
    moved = last.copy()
    moved.set_constraint(first.constraints)
    free = free_coordinates(first)
    if first.pbc.any():
        moved.set_positions(first.positions + _steps(first, last, shifted=bool(free.all())), apply_constraint=False)
    elif free.all():
        moved.set_constraint()
        minimize_rotation_and_translation(first, moved)
        moved.set_constraint(first.constraints)
    step = moved.positions - first.positions
    wrong = np.flatnonzero((np.abs(np.where(free, 0.0, step)) > 1e-3).any(1))
    if len(wrong):
        k = int(wrong[0])
        raise ValueError(
            f"fixed atoms must be at the same place in both ends, got {np.linalg.norm(step[k]):.3f} Å between those "
            f"of atom {k}"
        )
    farthest = float(np.linalg.norm(step, axis=1).max())
    if farthest < NEAR:
        raise ValueError(
            f"the ends of a path must be different minima, got two that differ by {farthest:.3f} Å; start from ends "
            "that are farther apart"
        )
    return moved


def _steps(first: Atoms, last: Atoms, *, shifted: bool) -> np.ndarray:
    """From atoms [N,3] of the first end to the nearest images of the last; shifted: without their mean."""
    step = last.positions - first.positions
    if shifted:
        cell = first.cell.complete().array
        # The mean of angles, which has no jumps at the faces.
        turns = np.angle(np.exp(2j * np.pi * step @ np.linalg.inv(cell)).mean(0)) / (2 * np.pi)
        step -= np.where(first.pbc, turns, 0.0) @ cell
    near, _ = find_mic(step, first.cell, first.pbc)
    return np.asarray(near - near.mean(0) if shifted else near)


def relaxed_ends(
    first: Atoms, last: Atoms, potential: Potential | Ensemble, settings: FireSettings, **how: Any
) -> list[Atoms]:
    """Both ends at their minima, relaxed in one batch. Raises ValueError for one that does not converge."""
    last = last.copy()
    last.set_constraint(first.constraints)
    found = sorted(relax_each([first, last], potential, settings, **how), key=lambda one: one.index)
    for one, name in zip(found, ("first", "last"), strict=True):
        if not one.converged:
            raise ValueError(f"the {name} end must relax to a minimum: {one.reason}")
    return [one.atoms for one in found]
