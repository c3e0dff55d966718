"""The reference model as an engine."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from torchmdx.engines.engine import Outputs, marked
from torchmdx.engines.plan import Plan
from torchmdx.evaluation.derivatives import differentiate
from torchmdx.models.potential import Potential
from torchmdx.neighbors.edges import Edges
from torchmdx.structures.system import Batch


class ExactEngine:
    """The potential differentiated by autograd."""

    name, table_error = "exact", 0.0
    deterministic = False  # on a GPU autograd adds gradients in any order
    plan: Plan | None = None

    def __init__(self, potential: Potential, batch: Batch, *, stress: bool) -> None:
        self.potential, self.batch, self.stress = potential.with_kept_lists(), batch, stress

    def reserve(self, capacity: int) -> None:
        pass  # autograd allocates

    def run(self, positions: Tensor, cell: Tensor, edges: Edges, *, forces: bool = True) -> Outputs:
        batch = replace(self.batch, positions=positions, cell=cell)
        with torch.set_grad_enabled(forces):
            result = differentiate(self.potential, batch, edges, forces=forces, stress=self.stress and forces)
        found = torch.zeros_like(positions) if result.forces is None else result.forces
        outputs = Outputs(result.energy, result.energies, found.to(self.potential.dtype), result.stress)
        return marked(replace(outputs, last_inputs=result.last_inputs), batch, edges)
