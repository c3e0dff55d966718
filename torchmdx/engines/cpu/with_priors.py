"""An engine on the CPU for a TensorNet with priors: the network in C, and the priors beside it by autograd."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor

from torchmdx.engines.cpu.engine import CompiledTensorNet
from torchmdx.engines.engine import Outputs
from torchmdx.evaluate import EnergyParts, differentiate_energy, per_volume, strained, strained_positions
from torchmdx.models.potential import Potential
from torchmdx.models.priors.base import Geometry
from torchmdx.neighbors.edges import Edges
from torchmdx.runtime.inference_mode import outside_inference_mode
from torchmdx.system import Batch


class CompiledPriorEngine:
    """A TensorNet in C, which ignores edges beyond its own cutoff, and priors."""

    def __init__(self, potential: Potential, batch: Batch, *, stress: bool) -> None:
        self.network = CompiledTensorNet(potential, batch.num_atoms, batch.num_systems)
        self.potential = copy.deepcopy(potential).requires_grad_(False)
        self.name, self.table_error = "compiled and priors", self.network.table.error
        self.batch, self.stress = batch, stress

    def reserve(self, capacity: int) -> None:
        pass  # the first run allocates

    @outside_inference_mode
    def run(self, positions: Tensor, cell: Tensor, edges: Edges, *, forces: bool = True) -> Outputs:
        stress = self.stress and forces
        found = self.network.run(self.batch, positions, cell, edges, forces=forces, virial=stress)
        batch, dtype = replace(self.batch, positions=positions, cell=cell), self.potential.dtype

        def priors(positions: Tensor, strain: Tensor | None) -> EnergyParts:
            vectors = edges.vectors(positions, cell, batch.system_index)
            if strain is not None:
                vectors = strained(vectors, strain, edges, batch.system_index)
                positions = strained_positions(positions, strain, batch.system_index)
            vectors, places = vectors.to(dtype), positions.to(dtype)
            seen = replace(batch, positions=places.detach(), cell=cell.to(dtype))
            distance = torch.linalg.vector_norm(vectors, dim=-1)
            energies = self.potential.prior_energies(Geometry(seen, edges, distance, places, None))
            energy = energies.new_zeros(batch.num_systems).index_add(0, batch.system_index, energies)
            return energy, energies, None

        with torch.set_grad_enabled(forces):
            given = positions.detach().requires_grad_(forces)
            added = differentiate_energy(priors, batch, given, forces=forces, stress=stress, create_graph=False)
        total = found.forces if added.forces is None else (found.forces + added.forces).to(dtype)
        stresses = None
        if self.stress:
            stresses = per_volume(found.virial.to(cell.dtype), cell)
            stresses = stresses if added.stress is None else stresses + added.stress
        return Outputs(found.energy + added.energy, found.energies + added.energies, total, stresses)
