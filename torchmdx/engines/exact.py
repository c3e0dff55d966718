"""The reference model as an engine."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from torchmdx.engines.cpu.network import TabulatedTensorNet
from torchmdx.engines.engine import Outputs
from torchmdx.evaluate import differentiate
from torchmdx.models.potential import Potential
from torchmdx.neighbors.edges import Edges
from torchmdx.system import Batch


class ModelEngine:
    """The potential differentiated by autograd: exact, or with filters from tables if `tabulated`."""

    def __init__(self, potential: Potential, batch: Batch, *, stress: bool, tabulated: bool) -> None:
        self.name, self.table_error = "exact", 0.0
        self.potential = potential
        if tabulated:
            network = TabulatedTensorNet(potential.network)
            self.potential = potential.with_network(network)
            self.name, self.table_error = "table", network.error
        self.batch, self.stress = batch, stress

    def reserve(self, capacity: int) -> None:
        pass  # autograd allocates

    def run(self, positions: Tensor, cell: Tensor, edges: Edges, *, forces: bool = True) -> Outputs:
        # Always with forces: `forces=False` would only save time, which does not matter for the exact model.
        batch = replace(self.batch, positions=positions, cell=cell)
        result = differentiate(self.potential, batch, edges, stress=self.stress)
        assert result.forces is not None
        return Outputs(result.energy, result.energies, result.forces.to(self.potential.dtype), result.stress)
