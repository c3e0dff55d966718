"""ASE's Atoms compared and copied, and results by ASE's names, for a calculator that is called at every step.

Comparisons and copies are those of `ase.calculators.calculator.compare_atoms` and `Atoms.copy`, which for a molecule
take longer than an evaluation on a GPU.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import PropertyNotImplementedError, all_changes
from ase.stress import full_3x3_to_voigt_6_stress
from numpy.typing import NDArray

from torchmdx.evaluation.derivatives import evaluate
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.step.results import StepResult
from torchmdx.structures.system import System

# Arrays of up to this size are compared as bytes, which takes a fraction of the time of NumPy's functions.
FEW_BYTES = 16384


def changes_between(before: Atoms | None, atoms: Atoms, tol: float = 1e-15, ignored: Collection[str] = ()) -> list[str]:
    """What differs, by the names in ASE's `all_changes`; all of them if `before` is None.

    Args:
        tol: The largest absolute difference of two numbers that count as equal.
    """
    if before is None:
        return all_changes[:]
    return [name for name in all_changes if name not in ignored and not _same(before, atoms, name, tol)]


def has_only_moved(before: Atoms, atoms: Atoms) -> bool:
    """Whether elements, cell, periodic directions and initial charges are exactly the same."""
    return all(_same(before, atoms, name, 0.0) for name in ("numbers", "cell", "pbc", "initial_charges"))


def snapshot(atoms: Atoms, before: Atoms | None = None) -> Atoms:
    """A copy of the atoms, without their calculator.

    Args:
        before: An earlier snapshot of atoms that `has_only_moved` says are the same; the copy shares its cell and pbc.
    """
    if before is None or type(before) is not type(atoms):
        return atoms.copy()
    made = copy.copy(before)
    made.arrays = {name: array.copy() for name, array in atoms.arrays.items()}
    made.info = dict(atoms.info)
    made.constraints = copy.deepcopy(atoms.constraints) if atoms.constraints else []
    made.set_celldisp(atoms.get_celldisp())
    return made


def _same(before: Atoms, atoms: Atoms, name: str, tol: float) -> bool:
    if name == "cell":
        return _close(before.cell.array, atoms.cell.array, tol)
    if name == "pbc":
        return _close(before.pbc, atoms.pbc, tol)
    one, other = before.arrays.get(name), atoms.arrays.get(name)
    if one is None or other is None:
        return one is other
    return _close(one, other, tol)


def _close(one: NDArray[Any], other: NDArray[Any], tol: float) -> bool:
    if one.shape != other.shape:
        return False
    if one.nbytes <= FEW_BYTES and one.dtype == other.dtype and one.tobytes() == other.tobytes():
        return True
    same = one == other
    if same.all():
        return True
    if one.dtype.kind != "f" and other.dtype.kind != "f":
        return False
    difference = np.abs(one - other)
    # The first test decides nearly always: an atom has moved.
    return not difference.max() > tol and bool((same | (difference <= tol)).all())


def results_of(result: StepResult, atoms: Atoms) -> dict[str, Any]:
    """The results of one system by ASE's names; stress, in Voigt order, if the cell has three lattice vectors."""
    energy = float(result.energy[0])
    found = {"energy": energy, "free_energy": energy, "energies": result.energies, "forces": result.forces}
    if result.stress is not None and atoms.cell.rank == 3:
        found["stress"] = full_3x3_to_voigt_6_stress(result.stress[0])
    if result.energy_spread is not None:
        found |= {"energy_spread": float(result.energy_spread[0]), "forces_spread": result.force_spread}
    if result.energy_uncertainty is not None:
        found |= {
            "energy_uncertainty": float(result.energy_uncertainty[0]),
            "energies_uncertainty": result.energies_uncertainty,
        }
    return found


def charge_results(
    potential: Potential | Ensemble, atoms: Atoms, charge: float, dipole_wanted: bool
) -> dict[str, NDArray[np.float64]]:
    """Charges, and the dipole of a structure that is not periodic, from the exact model; steps omit them."""
    if dipole_wanted and atoms.pbc.any():
        raise PropertyNotImplementedError(f"dipole needs a structure that is not periodic, got pbc {atoms.pbc}")
    result = evaluate(potential, System.from_ase(atoms, charge), forces=False)
    assert result.charges is not None
    assert result.dipoles is not None
    found = {"charges": result.charges.double().cpu().numpy()}
    if not atoms.pbc.any():
        found["dipole"] = result.dipoles[0].double().cpu().numpy()
    return found
