"""Structures to relax: checked at the boundary, and their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from torchmdx.dynamics.relaxation.fire import RUNNING, START_DT, START_MIXING, FireSettings
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.neighbors.images import require_countable
from torchmdx.structures.system import System

if TYPE_CHECKING:
    from ase import Atoms


@dataclass(frozen=True, eq=False)
class Relaxed:
    """One structure after its relaxation.

    Attributes:
        index: In the given structures.
        atoms: Relaxed, with energy, forces and, for moving cells, stress as results of a calculator; of a failure the
            last geometry.
        reason: Why the relaxation failed, None if it converged.
        fmax: The largest force, eV/Å, or force on the cell per atom, eV.
    """

    index: int
    atoms: Atoms
    reason: str | None = None
    num_steps: int = 0
    fmax: float = float("nan")

    @property
    def converged(self) -> bool:
        return self.reason is None


@dataclass(eq=False)
class RelaxationTask:
    """A structure in relaxation. values: its part of the buffers of `Fire`, by name, as NumPy arrays; zero without."""

    index: int
    atoms: Atoms
    system: System
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def num_atoms(self) -> int:
        return self.system.num_atoms


def task_of(
    index: int, atoms: Atoms, potential: Potential | Ensemble, settings: FireSettings, charge: float | None
) -> RelaxationTask:
    """Raises ValueError or TypeError for a structure that cannot be relaxed."""
    system = System.from_ase(atoms, charge)
    if not system.num_atoms:
        raise ValueError("a structure needs at least one atom, got none")
    potential.require_elements(system.atomic_numbers)
    _require_cell(atoms, settings)
    require_countable(system.cell[None], system.pbc[None], potential.cutoff)
    free = free_coordinates(atoms)
    count = system.num_atoms
    values = {
        "positions": system.positions.numpy().copy(),
        "free": free,
        "cell": system.cell.numpy().copy(),
        "dt": START_DT,
        "mixing": START_MIXING,
        "status": RUNNING,
        "steps": 0,
        "energy": 0.0,
        "fmax": 0.0,
        "start_volume": atoms.get_volume() if settings.cell else 0.0,
        "count": float(count),
        **({"cell_space": settings.space.projector(atoms.cell.array, atoms.pbc)} if settings.cell else {}),
    }
    return RelaxationTask(index, atoms, system, values)


def _require_cell(atoms: Atoms, settings: FireSettings) -> None:
    if not settings.cell:
        return
    if not atoms.pbc.any() or atoms.cell.rank < 3:
        raise ValueError(
            "a moving cell needs a periodic structure with three lattice vectors, "
            f"got pbc {atoms.pbc.tolist()} and a cell of rank {atoms.cell.rank}"
        )
    if settings.pressure and not atoms.pbc.all():
        raise ValueError(f"a pressure needs a structure periodic in all directions, got pbc {atoms.pbc.tolist()}")


def free_coordinates(atoms: Atoms) -> np.ndarray:
    """Which coordinates [N,3] move, from FixAtoms and FixCartesian; raises ValueError for other constraints."""
    from ase.constraints import FixAtoms, FixCartesian

    free = np.ones((len(atoms), 3), dtype=bool)
    for each in atoms.constraints:
        if isinstance(each, FixAtoms):
            free[each.index] = False
        elif isinstance(each, FixCartesian):
            free[each.index] &= ~np.asarray(each.mask, dtype=bool)
        else:
            raise ValueError(
                f"constraints must be FixAtoms or FixCartesian in a batch, got {type(each).__name__}; "
                "relax this structure alone"
            )
    return free


def groups_of(tasks: Sequence[RelaxationTask]) -> list[list[RelaxationTask]]:
    """Tasks that may share a batch: periodic or not, with given partial charges or without; large ones first.

    Large ones first, so that what is left at the end, with few systems in a batch, is cheap.
    """
    groups: dict[tuple[bool, bool], list[RelaxationTask]] = {}
    for task in tasks:
        key = (bool(task.system.pbc.any()), task.system.partial_charges is not None)
        groups.setdefault(key, []).append(task)
    return [sorted(group, key=lambda task: -task.num_atoms) for group in groups.values()]
