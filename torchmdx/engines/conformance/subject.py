"""What the contract of engines is checked with: an engine's factory, a potential, structures, and the oracle."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchmdx.engines.engine import Engine, Outputs
from torchmdx.evaluation.check_structures import case_of
from torchmdx.evaluation.derivatives import Result, evaluate
from torchmdx.models.potential import Potential
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.neighbors.edges import Edges
from torchmdx.structures.system import Batch, System


@dataclass(frozen=True, eq=False)
class Subject:
    """An engine's factory, the potential that it gets, and structures.

    Attributes:
        exact: The same weights in float64 on the CPU, the oracle.
        scale: The largest force of the oracle in the molecule, eV/Å, to which errors are relative.
    """

    make: Callable[..., Engine]
    potential: Potential
    exact: Potential
    molecule: System
    crystal: System
    scale: float
    stress: bool
    precision: str

    @classmethod
    def of(cls, make: Callable[..., Engine], potential: Potential, *, stress: bool, precision: str) -> Subject:
        """Of a factory as for `register_engine`."""
        given = copy.deepcopy(potential).eval().requires_grad_(False)
        case = case_of(copy.deepcopy(given).to(device="cpu", dtype=torch.float64), torch.device("cpu"))
        return cls(make, given, case.potential, case.molecule, case.crystal, case.scale, stress, precision)

    def batch(self, *systems: System) -> Batch:
        """On the potential's device, with positions and cells in the precision of the potential."""
        return Batch.from_systems(list(systems)).to(self.potential.device, self.potential.dtype)

    def edges(self, batch: Batch, skin: float = 0.0, spare: int = 0) -> Edges:
        radius = self.potential.search_cutoff(batch) + skin
        found = brute_force(batch, radius)
        return brute_force(batch, radius, found.capacity + spare) if spare else found

    def engine(self, batch: Batch) -> Engine:
        return self.make(self.potential, batch, stress=self.stress, precision=self.precision)

    def run(self, batch: Batch, edges: Edges | None = None, engine: Engine | None = None, **options: Any) -> Outputs:
        """Copies of the outputs of a new engine, or of one that has been reserved."""
        edges = self.edges(batch) if edges is None else edges
        if engine is None:
            engine = self.engine(batch)
            engine.reserve(edges.capacity)
        return copied(engine.run(batch.positions, batch.cell, edges, **options))

    def oracle(self, batch: Batch) -> Result:
        """At the positions of the batch, as they are rounded."""
        return evaluate(self.exact, batch.to("cpu", torch.float64), stress=True)

    def error(self, found: Outputs, wanted: Result) -> float:
        """The largest error of energies and forces, relative to the largest force and the largest energy."""
        assert wanted.forces is not None
        count = len(wanted.energies)
        size = self.scale + (float(wanted.energies.abs().max()) if count else 0.0)
        errors = [
            largest_difference(found.forces, wanted.forces) / self.scale,
            largest_difference(found.energies, wanted.energies) / size,
            largest_difference(found.energy, wanted.energy) / (size * max(count, 1)),
        ]
        return float("nan") if any(error != error for error in errors) else max(errors)


def copied(outputs: Outputs) -> Outputs:
    """An engine may return the same tensors every time."""
    tensors = {name: value.clone() for name, value in vars(outputs).items() if value is not None}
    return replace(outputs, **tensors)


def largest_difference(found: Tensor, wanted: Tensor) -> float:
    """Of two tensors of one shape; 0 without numbers. Raises ValueError for another shape."""
    if found.shape != wanted.shape:
        raise ValueError(f"the shape must be {list(wanted.shape)}, got {list(found.shape)}")
    return float((found.detach().cpu().double() - wanted).abs().max()) if wanted.numel() else 0.0
