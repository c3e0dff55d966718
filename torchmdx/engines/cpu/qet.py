"""QET on the CPU: features of its TensorNet in C; equilibration, head and priors by autograd between the passes."""

from __future__ import annotations

import copy
from dataclasses import replace

from torch import Tensor

from torchmdx.engines.cpu.engine import CompiledTensorNet, NetworkResult
from torchmdx.engines.cpu.with_priors import CpuPriorEngine
from torchmdx.models.potential import Potential
from torchmdx.models.priors.base import Geometry
from torchmdx.models.qet import QET
from torchmdx.models.uncertainty import last_layer_inputs
from torchmdx.structures.system import Batch


class CpuQETEngine(CpuPriorEngine):
    """A QET, with any priors."""

    def __init__(self, potential: Potential, batch: Batch, *, stress: bool) -> None:
        assert isinstance(potential.network, QET)
        inner = potential.with_network(potential.network.tensornet)
        self.charged = True  # there is a gradient in what the network returns
        self.network = CompiledTensorNet(inner, batch.num_atoms, batch.num_systems, head=False)
        self.potential = copy.deepcopy(potential).requires_grad_(False).with_kept_lists()
        self.name, self.table_error = "compiled and equilibration", self.network.table.error
        self.batch, self.stress = batch, stress
        self.direct, self.others = [], []
        self._joined: Tensor | None = None  # features of the last evaluation

    def _energies(self, geometry: Geometry) -> Tensor:
        """All energies; the charges of the geometry are the features of the TensorNet."""
        network, features = self.potential.network, geometry.charges
        joined, charges = network.equilibrated(features, geometry.edges, geometry.distance, geometry.batch)
        self._joined = joined.detach()
        outputs = self.potential.head(joined)
        return self.potential.assemble(outputs, geometry.batch, lambda: replace(geometry, charges=charges))

    def _last_inputs(self, found: NetworkResult) -> Tensor | None:
        if self.potential.uncertainty is None or self._joined is None:
            return None
        return last_layer_inputs(self.potential, self._joined)
