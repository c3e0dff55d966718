"""Fixed atoms and velocities that a file of ASE stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ase import Atoms

UNITLESS = ("velocities", "velocity", "velo", "vel")  # columns of XYZ files, in units that the file does not state


def fixed_atoms(atoms: Atoms, *, ignore: bool = False) -> NDArray[np.bool_]:
    """Which atoms the constraints fix [N]. ignore: none of them.

    Raises ValueError that names the constraints that do anything else than fix atoms completely.
    """
    from ase.constraints import FixAtoms, FixCartesian

    fixed = np.zeros(len(atoms), dtype=bool)
    if ignore:
        return fixed
    others = []
    for constraint in atoms.constraints:
        if isinstance(constraint, FixAtoms) or (isinstance(constraint, FixCartesian) and np.all(constraint.mask)):
            fixed[constraint.get_indices()] = True
        else:
            others.append(type(constraint).__name__)
    if others:
        raise ValueError(
            f"molecular dynamics keeps constraints that fix atoms (FixAtoms), got {', '.join(sorted(set(others)))}; "
            "--ignore-constraints runs without any constraint"
        )
    return fixed


def stored_velocities(atoms: Atoms) -> NDArray[np.float64] | None:
    """Velocities [N,3] in Å/fs from the momenta of the atoms; None if there are none or all are zero.

    Raises:
        ValueError: If they are not finite.
    """
    from ase import units

    if not atoms.has("momenta") or not atoms.get_momenta().any():
        return None
    velocities = np.asarray(atoms.get_velocities(), dtype=np.float64) * units.fs
    bad = np.flatnonzero(~np.isfinite(velocities).all(1))
    if len(bad):
        raise ValueError(f"stored velocities must be finite, got {velocities[bad[0]].tolist()} Å/fs for atom {bad[0]}")
    return velocities


def unread_velocities(atoms: Atoms) -> str | None:
    """The name of a column of velocities without a known unit, which is not read; None if there is none."""
    return next((name for name in UNITLESS if atoms.has(name)), None)


def set_motion(
    atoms: Atoms,
    masses: NDArray[np.float64],
    fixed: NDArray[np.bool_],
    velocities: NDArray[np.float64] | None,
    charge: float,
) -> None:
    """Gives atoms, for a file, what a run has: which are fixed [N], velocities [N,3] Å/fs, and their charge, e.

    masses [N] amu: written where they are not those of the elements.
    """
    from ase import units
    from ase.constraints import FixAtoms
    from ase.data import atomic_masses

    atoms.set_array("momenta", None)
    if np.allclose(masses, atomic_masses[atoms.numbers], rtol=1e-6):
        atoms.set_array("masses", None)
    else:
        atoms.set_masses(masses)
    if velocities is not None:
        atoms.set_velocities(velocities / units.fs)
    atoms.info["charge"] = charge
    atoms.set_constraint(FixAtoms(mask=fixed) if fixed.any() else None)


def origin_of_velocities(stored: bool, scaled: bool) -> str:
    """Where initial velocities are from. scaled: whether those of the file have been, to the masses of the run."""
    if not stored:
        return "drawn"
    return (
        "from the file, scaled to the masses of the run, which keeps their temperature" if scaled else "from the file"
    )
