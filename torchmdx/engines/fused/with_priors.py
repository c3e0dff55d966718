"""An engine for potentials with priors: the network by fused kernels, and the priors beside it.

Coulomb energies have kernels of their own; other priors are differentiated by autograd.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from torchmdx.domain import of_owned
from torchmdx.engines.engine import Outputs
from torchmdx.engines.fused.engine import allocate, within_of
from torchmdx.engines.fused.tensornet import FastTensorNet
from torchmdx.engines.pairs.energy import strained_positions
from torchmdx.engines.pairs.pair_list import PairList, sum_rows
from torchmdx.engines.pairs.prior_geometry import pair_geometry
from torchmdx.evaluate import per_volume
from torchmdx.models.potential import Potential
from torchmdx.models.priors.base import Prior, shapes_are_fixed
from torchmdx.models.priors.coulomb import Coulomb
from torchmdx.neighbors.capacity import with_head_room
from torchmdx.neighbors.edges import Edges
from torchmdx.neighbors.reverse import find_reverse
from torchmdx.runtime.device_guard import device_of_positions, runs_on
from torchmdx.system import Batch


class PriorKernelEngine:
    """TensorNet or TensorNet2 in fused kernels on a GPU, and priors.

    Gradients of priors with respect to predicted charges enter the fused backward pass.
    """

    def __init__(self, model: FastTensorNet, potential: Potential, batch: Batch, *, stress: bool) -> None:
        from torchmdx.engines.fused.kernels.near_list import NearRows

        self.model, self.potential = model, copy.deepcopy(potential).requires_grad_(False)
        self.name, self.table_error = f"kernels and priors, {model.precision}", model.table.error
        self.batch, self.stress = batch, stress
        priors = [cast(Prior, prior) for prior in self.potential.priors]
        # By type: a class derived from Coulomb may compute another energy.
        self.direct = [prior for prior in priors if type(prior) is Coulomb]
        self.others = [prior for prior in priors if type(prior) is not Coulomb]
        # If priors have a larger cutoff than the network, the network gets a list of its own.
        cutoff = float(potential.config.cutoff)
        self.near = NearRows(cutoff) if potential.search_cutoff(batch) > cutoff else None

    def reserve(self, capacity: int) -> None:
        self.reverse = torch.zeros(capacity, dtype=torch.int32, device=self.batch.positions.device)
        if self.near is None:
            allocate(self.model, self.batch, capacity)
        else:
            self.near.capacity = None

    @runs_on(device_of_positions)
    def run(self, positions: Tensor, cell: Tensor, edges: Edges, *, forces: bool = True) -> Outputs:
        batch = replace(self.batch, positions=positions, cell=cell)
        inner = edges if self.near is None else self._nearer(batch, edges)
        inputs = (positions, batch.atomic_numbers, batch.system_index, cell, batch.charge, inner)
        priors = _Priors(self, batch, edges, forces, self.stress and forces)
        virial, within = self.stress and forces, within_of(batch)
        found = self.model.run(*inputs, forces=forces, virial=virial, between=priors.evaluate, within=within)
        stress = per_volume(found.virial + priors.virial, cell) if self.stress else None
        of_systems = sum_rows(priors.energies, batch.system_index, batch.num_systems)
        total = (found.forces + priors.forces).to(found.forces.dtype)
        return Outputs(found.energy + of_systems, found.energies + priors.energies, total, stress)

    def _nearer(self, batch: Batch, edges: Edges) -> Edges:
        """The network's own list. Its capacity is chosen at the first run after `reserve`, which reads the device."""
        assert self.near is not None
        if self.near.capacity is None:
            if shapes_are_fixed(batch.positions):
                raise RuntimeError("an evaluation must have run before it is captured")
            capacity = with_head_room(int(self.near.counts(batch, edges).sum()), batch.num_atoms)
            allocate(self.model, batch, capacity)
            self.near.capacity = capacity
        return self.near.edges(batch, edges)


class _Priors:
    """Energies [N], forces [N,3] and virial [S,3,3] of the priors, once `evaluate` has been called."""

    def __init__(self, engine: PriorKernelEngine, batch: Batch, edges: Edges, forces: bool, stress: bool) -> None:
        self.engine, self.batch, self.edges = engine, batch, edges
        self.with_forces, self.with_stress = forces, stress
        device = batch.positions.device
        self.energies = torch.zeros(batch.num_atoms, dtype=torch.float64, device=device)
        self.forces = torch.zeros(batch.num_atoms, 3, dtype=batch.positions.dtype, device=device)
        self.virial = torch.zeros(batch.num_systems, 3, 3, dtype=batch.cell.dtype, device=device)

    def evaluate(self, chain: Any) -> None:
        """Called after the kernels' forward pass: reads their charges and sets the gradient for their backward pass."""
        channels_of: Callable[[], Tensor] | None = getattr(chain, "channels", None)
        channels = None if channels_of is None else channels_of()
        pulls = [self._directly(prior, channels) for prior in self.engine.direct]
        if self.engine.others:
            pulls.append(self._by_autograd(channels))
        if channels is not None and self.with_forces:
            chain.pull_on_charges = sum((pull for pull in pulls if pull is not None), torch.zeros_like(channels))

    def _directly(self, prior: Coulomb, channels: Tensor | None) -> Tensor | None:
        """Adds a prior that has kernels; returns its gradient in the predicted charges."""
        from torchmdx.engines.fused.kernels import coulomb

        batch, predicted = self.batch, prior.config.charges == "predicted"
        charges = prior.given_charges(batch) if not predicted else channels
        assert charges is not None, "the registry makes no such prior for other networks"
        charges = charges.to(self.engine.potential.dtype).contiguous()
        found = coulomb.evaluate(prior, batch, self.edges, charges, stress=self.with_stress)
        self.energies = self.energies + found.energies
        self.forces = self.forces + found.forces
        if found.virial is not None:
            of_systems = sum_rows(found.virial.flatten(1).double(), batch.system_index, batch.num_systems)
            self.virial = self.virial + of_systems.unflatten(1, (3, 3)).to(self.virial.dtype)
        return found.pull if predicted else None

    def _by_autograd(self, channels: Tensor | None) -> Tensor | None:
        """Adds the other priors; returns their gradient in the predicted charges."""
        batch, potential = self.batch, self.engine.potential
        find_reverse(self.edges, self.engine.reverse)
        pairs = PairList.of(self.edges, self.engine.reverse)
        with torch.set_grad_enabled(self.with_forces):
            positions = batch.positions.detach().requires_grad_(self.with_forces)
            strain = symmetric = None
            if self.with_stress:
                strain = positions.new_zeros(batch.num_systems, 3, 3).requires_grad_()
                symmetric = (strain + strain.transpose(1, 2)) / 2
            if channels is not None:
                channels = channels.detach().requires_grad_(self.with_forces)
            dtype = potential.dtype
            vectors = pairs.vectors(positions, batch.cell, batch.system_index, symmetric).to(dtype)
            places = (positions if symmetric is None else strained_positions(positions, symmetric, batch)).to(dtype)
            seen = replace(batch, positions=places.detach(), cell=batch.cell.to(dtype))
            geometry = pair_geometry(seen, pairs, vectors, places, channels)
            energies = of_owned(potential.prior_energies(geometry, self.engine.others), batch)
            total = energies.sum()
        self.energies = self.energies + energies.detach()
        if not self.with_forces:
            return None
        inputs = [x for x in (positions, strain, channels) if x is not None]
        found = iter(torch.autograd.grad(total, inputs, allow_unused=True))
        self.forces = self.forces - _or_zeros(next(found), positions)
        if strain is not None:
            self.virial = self.virial + _or_zeros(next(found), strain)
        return None if channels is None else _or_zeros(next(found), channels)


def _or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if gradient is None else gradient
