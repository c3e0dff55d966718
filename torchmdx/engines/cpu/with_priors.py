"""An engine on the CPU for potentials with priors: the network in C, the priors separately.

Coulomb energies have a kernel in C; other priors are differentiated by autograd.
"""

from __future__ import annotations

import copy
import functools
import operator
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from torchmdx.engines.cpu import coulomb
from torchmdx.engines.cpu.coulomb import PriorResult
from torchmdx.engines.cpu.engine import CompiledTensorNet, NetworkResult
from torchmdx.engines.engine import Outputs
from torchmdx.engines.plan import Plan
from torchmdx.evaluation.derivatives import strained
from torchmdx.models.potential import Potential
from torchmdx.models.priors.base import Geometry, Lattice, Prior
from torchmdx.models.priors.coulomb import Coulomb
from torchmdx.neighbors.edges import Edges
from torchmdx.runtime.isolation import isolated
from torchmdx.structures.cell import per_volume, strained_cell, strained_positions
from torchmdx.structures.domain import of_owned
from torchmdx.structures.system import Batch


class CpuPriorEngine:
    """A TensorNet or TensorNet2 in C, which ignores edges beyond its own cutoff, and priors.

    Gradients of priors with respect to predicted charges enter the backward pass in C.
    """

    plan: Plan | None = None

    def __init__(self, potential: Potential, batch: Batch, *, stress: bool) -> None:
        self.charged = potential.predicts_charges  # any prior may read them
        self.network = CompiledTensorNet(potential, batch.num_atoms, batch.num_systems, charges=self.charged)
        self.potential = copy.deepcopy(potential).requires_grad_(False).with_kept_lists()
        self.name, self.table_error = "compiled and priors", self.network.table.error
        self.batch, self.stress = batch, stress
        priors = [cast(Prior, prior) for prior in self.potential.priors]
        # By type: a class derived from Coulomb may compute another energy.
        self.direct = [prior for prior in priors if type(prior) is Coulomb and coulomb.available()]
        self.others = [prior for prior in priors if prior not in self.direct]

    def reserve(self, capacity: int) -> None:
        pass  # the first run allocates

    @isolated
    def run(self, positions: Tensor, cell: Tensor, edges: Edges, *, forces: bool = True) -> Outputs:
        stress, batch = self.stress and forces, replace(self.batch, positions=positions, cell=cell)
        results: list[PriorResult] = []

        def pull_of(channels: Tensor | None) -> Tensor:
            results.append(self._priors(batch, edges, channels, forces=forces, stress=stress))
            pull = results[0].pull
            return positions.new_zeros(0) if pull is None else pull

        if not self.charged:
            pull_of(None)
        found = self.network.run(
            self.batch, positions, cell, edges, forces=forces, virial=stress, pull_of=pull_of if self.charged else None
        )
        (added,) = results or [self._priors(batch, edges, found.channels, forces=forces, stress=stress)]  # no atoms
        energy = added.energies.new_zeros(batch.num_systems).index_add(0, batch.system_index, added.energies)
        total = (found.forces - added.slope).to(self.potential.dtype) if forces else found.forces
        virial = found.virial + added.virial
        stresses = per_volume(virial.to(cell.dtype), cell) if self.stress else None
        energies = found.energies + added.energies
        return Outputs(found.energy + energy, energies, total, stresses, last_inputs=self._last_inputs(found))

    def _last_inputs(self, found: NetworkResult) -> Tensor | None:
        """Inputs of the head's last layer."""
        return found.last_inputs

    def _priors(
        self, batch: Batch, edges: Edges, channels: Tensor | None, *, forces: bool, stress: bool
    ) -> PriorResult:
        found = [coulomb.evaluate(prior, batch, edges, channels, forces=forces, stress=stress) for prior in self.direct]
        if self.others or not found:
            found.append(self._by_autograd(batch, edges, channels, forces=forces, stress=stress))
        return functools.reduce(operator.add, found)

    def _energies(self, geometry: Geometry) -> Tensor:
        """Energies [N] that autograd differentiates."""
        return self.potential.prior_energies(geometry, self.others)

    def _by_autograd(
        self, batch: Batch, edges: Edges, channels: Tensor | None, *, forces: bool, stress: bool
    ) -> PriorResult:
        dtype = self.potential.dtype
        with torch.set_grad_enabled(forces):
            positions = batch.positions.detach().requires_grad_(forces)
            strain = positions.new_zeros(batch.num_systems, 3, 3).requires_grad_(stress)
            if channels is not None:
                channels = channels.detach().requires_grad_(forces)
            vectors, places = edges.vectors(positions, batch.cell, batch.system_index), positions
            if stress:
                vectors = strained(vectors, strain, edges, batch.system_index)
                places = strained_positions(places, strain, batch.system_index)
            lattice = Lattice(places, strained_cell(batch.cell, strain if stress else None))
            vectors, places = vectors.to(dtype), places.to(dtype)
            seen = replace(batch, positions=places.detach(), cell=batch.cell.to(dtype))
            distance = torch.linalg.vector_norm(vectors, dim=-1)
            geometry = Geometry(seen, edges, distance, places, channels, lattice)
            energies = of_owned(self._energies(geometry), batch)
            total = energies.sum()
        slope, virial, pull = torch.zeros_like(positions), torch.zeros_like(strain), None
        if channels is not None:
            pull = torch.zeros_like(channels)
        if forces and energies.requires_grad:
            inputs = [x for x in (positions, strain if stress else None, channels) if x is not None]
            gradients = iter(torch.autograd.grad(total, inputs, materialize_grads=True))
            slope = next(gradients)
            virial = next(gradients) if stress else virial
            pull = pull if pull is None else next(gradients)
        return PriorResult(energies.detach(), slope.detach(), virial.detach(), pull)
