"""What remains of a task that has ended: the structure with its results, or the reason of its failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torchmdx.dynamics.relaxation.fire import (
    CELL_LOST,
    CONVERGED,
    MOST_TRAVEL,
    MOST_VOLUME_RATIO,
    NOT_FINITE,
    OUT_OF_STEPS,
    TOO_FAR,
    FireSettings,
)
from torchmdx.dynamics.relaxation.tasks import RelaxationTask, Relaxed
from torchmdx.evaluation.derivatives import SAME_PLACE, AtomsTogether
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.origin import Origin
from torchmdx.models.potential import Potential
from torchmdx.neighbors.capacity import CapacityError
from torchmdx.neighbors.search import EdgeSearch
from torchmdx.structures.system import Batch

if TYPE_CHECKING:
    from ase import Atoms


def relaxed(
    task: RelaxationTask, settings: FireSettings, results: dict[str, Any], slot: int, first: int, origin: Origin
) -> Relaxed:
    """The result of a stored task. results: of the whole batch; slot, first: where the task is in them."""
    values, status = task.values, int(task.values["status"])
    atoms = task.atoms.copy()
    cell = np.where(settings.space.fixed(atoms.pbc)[:, None], atoms.cell.array, values["cell"])  # without rounding
    atoms.set_cell(cell, scale_atoms=False)
    atoms.set_positions(values["positions"], apply_constraint=False)
    if status != NOT_FINITE:
        _attach(atoms, float(values["energy"]), results, slot, first, origin)
    reason = None if status == CONVERGED else _reason(atoms, values, status, settings)
    return Relaxed(task.index, atoms, reason, int(values["steps"]), float(values["fmax"]))


def failed(index: int, atoms: Atoms, reason: str) -> Relaxed:
    """A structure that could not be evaluated."""
    return Relaxed(index, atoms.copy(), reason)


def _attach(atoms: Atoms, energy: float, results: dict[str, Any], slot: int, first: int, origin: Origin) -> None:
    from ase.calculators.singlepoint import SinglePointCalculator
    from ase.stress import full_3x3_to_voigt_6_stress

    forces = results["forces"][first : first + len(atoms)].copy()
    found: dict[str, Any] = {"energy": energy, "free_energy": energy, "forces": forces}
    if "stress" in results and atoms.pbc.any() and atoms.cell.rank == 3:
        found["stress"] = full_3x3_to_voigt_6_stress(results["stress"][slot])
    atoms.info |= origin.info
    atoms.calc = SinglePointCalculator(atoms, **found)
    atoms.calc.name = "torchmdx"
    atoms.calc.parameters.update(origin.info)


def _reason(atoms: Atoms, values: dict[str, Any], status: int, settings: FireSettings) -> str:
    steps, fmax = int(values["steps"]), float(values["fmax"])
    if status == OUT_OF_STEPS:
        return f"not converged to {settings.fmax} eV/Å in {settings.steps} steps: largest force {fmax:.3g} eV/Å"
    if status == NOT_FINITE:
        return f"energy or forces are not finite after {steps} steps{_closest(atoms)}"
    if status == TOO_FAR:
        return f"an atom moved farther than {MOST_TRAVEL:g} Å from its start, after {steps} steps"
    assert status == CELL_LOST, status
    start = float(values["start_volume"])
    return (
        f"the volume of the cell changed more than {MOST_VOLUME_RATIO:g}-fold, from {start:.4g} "
        f"to {atoms.get_volume():.4g} Å³ and beyond, after {steps} steps"
    )


def _closest(atoms: Atoms) -> str:
    """The distance of the closest pair, or that they coincide, in the words of a reason; nothing for one atom."""
    if len(atoms) < 2 or not np.isfinite(atoms.positions).all():
        return ""
    distances = atoms.get_all_distances(mic=bool(atoms.pbc.any()))
    distances[np.diag_indices(len(atoms))] = np.inf
    i, j = np.unravel_index(distances.argmin(), distances.shape)
    if distances[i, j] < SAME_PLACE:
        return f": {AtomsTogether(i, j)}"
    return f"; the closest atoms, {i} and {j}, are {distances[i, j]:.3g} Å apart"


def searchable(task: RelaxationTask, potential: Potential | Ensemble) -> bool:
    """Whether the neighbours of a stored task can be listed: not in a structure that has collapsed."""
    system = task.system
    batch = Batch(
        positions=torch.from_numpy(task.values["positions"]),
        atomic_numbers=system.atomic_numbers,
        system_index=torch.zeros_like(system.atomic_numbers),
        cell=torch.from_numpy(task.values["cell"])[None],
        pbc=system.pbc[None],
        charge=torch.tensor([system.charge], dtype=torch.float64, device="cpu"),
    )
    try:
        EdgeSearch(potential.cutoff).allocate(batch)
    except CapacityError:
        return False
    return True
