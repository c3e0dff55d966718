"""The structures of the checks, and the potential that is checked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from torchmdx.evaluation.derivatives import Result, evaluate
from torchmdx.models.potential import Potential
from torchmdx.structures.system import System

# A bent chain of nine atoms without symmetry, Å, and a crystal with a cell smaller than most cutoffs.
CHAIN = (
    (1.17, -0.38, 0.03), (0.02, 0.55, -0.05), (-1.19, -0.22, 0.04), (-1.94, 0.40, -0.02), (2.12, 0.17, 0.06),
    (1.10, -1.06, 0.86), (1.16, -1.00, -0.93), (0.09, 1.24, 0.85), (-0.05, 1.17, -0.94),
)  # fmt: skip
CELL = ((3.1, 0.1, 0.0), (0.7, 2.9, -0.2), (-0.5, 0.9, 3.3))
IN_CELL = ((0.17, 0.40, 0.04), (1.55, 0.28, 1.75), (0.45, 2.33, 1.79))
# Elements used first, if the potential supports them.
PREFERRED_ELEMENTS = (6, 8, 1, 7)


@dataclass(frozen=True, eq=False)
class Case:
    """A potential in float64 on the CPU, with its own copy of the weights, and structures to evaluate."""

    potential: Potential
    molecule: System
    crystal: System
    device: torch.device

    def forces_of(self, system: System) -> torch.Tensor:
        """[N,3] eV/Å."""
        forces = evaluate(self.potential, system).forces
        assert forces is not None
        return forces

    @cached_property
    def scale(self) -> float:
        """The largest component of a force in the molecule, eV/Å: errors are relative to it."""
        size = float(self.forces_of(self.molecule).abs().max())
        if not 0 < size < float("inf"):
            raise ValueError(f"the largest force must be > 0 eV/Å and finite, got {size}")
        return size


def case_of(potential: Potential, device: torch.device) -> Case:
    """A case with new structures of elements that the potential supports."""
    known = elements_of(potential)
    numbers = [known[k % len(known)] for k in (0, 0, 1, 2, 2, 2, 2, 3, 2)]
    molecule = System.create(CHAIN, numbers)
    crystal = System.create(IN_CELL, [known[k % len(known)] for k in (1, 0, 2)], CELL, True)
    return Case(potential, molecule, crystal, device)


def elements_of(potential: Potential) -> list[int]:
    """Up to four elements that a potential supports. Raises ValueError if there are none."""
    others = (number for number in range(1, potential.max_z + 1) if number not in PREFERRED_ELEMENTS)
    order = [*PREFERRED_ELEMENTS, *others]
    known = []
    for number in order:
        try:
            potential.require_elements(torch.tensor([number], device="cpu"))
        except ValueError:
            continue
        known.append(number)
        if len(known) == len(PREFERRED_ELEMENTS):
            break
    if not known:
        raise ValueError(f"a potential must support at least one element, got none up to {potential.max_z}")
    return known


def with_positions(system: System, positions: torch.Tensor, cell: torch.Tensor | None = None) -> System:
    """The same atoms at other positions, and with another cell if given."""
    lattice = system.cell if cell is None else cell
    return System.create(positions, system.atomic_numbers, lattice, system.pbc, system.charge)


def difference(one: Result, other: Result, scale: float) -> float:
    """The largest difference of energies, eV, and forces, eV/Å, of the same atoms, relative to a force, eV/Å."""
    assert one.forces is not None
    assert other.forces is not None
    differences = [(one.energies - other.energies).abs().max(), (one.forces - other.forces).abs().max()]
    return largest(differences) / scale


def largest(values: list[torch.Tensor]) -> float:
    """The largest of some numbers; NaN if one of them is NaN."""
    found = torch.stack([value.double() for value in values])
    return float("nan") if bool(found.isnan().any()) else float(found.max())
