"""An engine for potentials with priors: the network by fused kernels, the priors beside it by autograd."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchmdx.forces import per_volume
from torchmdx.models.fast import FastTensorNet
from torchmdx.models.near_pairs import NearList
from torchmdx.models.pair_geometry import pair_geometry
from torchmdx.models.pairs import PairList, sum_rows
from torchmdx.models.pairwise import strained_positions
from torchmdx.models.potential import Potential
from torchmdx.models.priors.base import shapes_are_fixed
from torchmdx.neighbors.capacity import with_head_room
from torchmdx.neighbors.edges import Edges
from torchmdx.neighbors.reverse import find_reverse
from torchmdx.outputs import Outputs
from torchmdx.system import Batch


class PriorKernelEngine:
    """TensorNet or TensorNet2 in fused kernels on a GPU, and priors as the network of pairs has them.

    Priors that depend on charges pull on them: that enters the kernels' way back.
    """

    def __init__(self, model: FastTensorNet, potential: Potential, batch: Batch, *, stress: bool) -> None:
        self.model, self.potential = model, copy.deepcopy(potential).requires_grad_(False)
        self.name, self.table_error = f"kernels and priors, {model.precision}", model.table.error
        self.batch, self.stress = batch, stress
        # Priors may see farther than the network, which then has a list of its own.
        cutoff = float(potential.config.cutoff)
        self.near = NearList(cutoff) if potential.search_cutoff(batch) > cutoff else None

    def reserve(self, capacity: int) -> None:
        self.reverse = torch.zeros(capacity, dtype=torch.int32, device=self.batch.positions.device)
        if self.near is None:
            self.model.allocate(self.batch.num_atoms, self.batch.num_systems, capacity)
        else:
            self.near.capacity = None

    def run(self, positions: Tensor, cell: Tensor, edges: Edges, *, forces: bool = True) -> Outputs:
        find_reverse(edges, self.reverse)
        batch = replace(self.batch, positions=positions, cell=cell)
        inner = edges if self.near is None else self._nearer(self.near, batch, edges)
        inputs = (positions, batch.atomic_numbers, batch.system_index, cell, batch.charge, inner)
        priors = _Priors(self.potential, batch, PairList.of(edges, self.reverse), forces, self.stress and forces)
        found = self.model.run(*inputs, forces=forces, virial=self.stress and forces, between=priors.evaluate)
        stress = per_volume(found.virial + priors.virial, cell) if self.stress else None
        of_systems = sum_rows(priors.energies, batch.system_index, batch.num_systems)
        total = (found.forces + priors.forces).to(found.forces.dtype)
        return Outputs(found.energy + of_systems, found.energies + priors.energies, total, stress)

    def _nearer(self, near: NearList, batch: Batch, edges: Edges) -> Edges:
        """The network's own list. Its capacity is chosen at the first run after `reserve`, which reads the device."""
        if near.capacity is None:
            if shapes_are_fixed(batch.positions):
                raise RuntimeError("an evaluation must have run before it is captured")
            near.capacity = with_head_room(near.count(batch, edges, self.reverse), batch.num_atoms)
            self.model.allocate(batch.num_atoms, batch.num_systems, near.capacity)
        return near.pairs(batch, edges, self.reverse).edges


class _Priors:
    """Energies [N], forces [N,3] and virial [S,3,3] of the priors, once `evaluate` has been called."""

    energies: Tensor
    forces: Tensor
    virial: Tensor

    def __init__(self, potential: Potential, batch: Batch, pairs: PairList, forces: bool, stress: bool) -> None:
        self.potential, self.batch, self.pairs = potential, batch, pairs
        self.with_forces, self.with_stress = forces, stress

    def evaluate(self, chain: Any) -> None:
        """With the charges of a chain of kernels that has gone forward; what pulls on them goes back with it."""
        channels_of: Callable[[], Tensor] | None = getattr(chain, "channels", None)
        channels = None if channels_of is None else channels_of()
        batch = self.batch
        with torch.set_grad_enabled(self.with_forces):
            positions = batch.positions.detach().requires_grad_(self.with_forces)
            strain = symmetric = None
            if self.with_stress:
                strain = positions.new_zeros(batch.num_systems, 3, 3).requires_grad_()
                symmetric = (strain + strain.transpose(1, 2)) / 2
            if channels is not None:
                channels = channels.detach().requires_grad_(self.with_forces)
            dtype = self.potential.dtype
            vectors = self.pairs.vectors(positions, batch.cell, batch.system_index, symmetric).to(dtype)
            places = (positions if symmetric is None else strained_positions(positions, symmetric, batch)).to(dtype)
            seen = replace(batch, positions=places.detach(), cell=batch.cell.to(dtype))
            energies = self.potential.prior_energies(pair_geometry(seen, self.pairs, vectors, places, channels))
        self.energies = energies.detach()
        self.forces, self.virial = torch.zeros_like(positions), batch.cell.new_zeros(batch.num_systems, 3, 3)
        if self.with_forces:
            inputs = [x for x in (positions, strain, channels) if x is not None]
            found = iter(torch.autograd.grad(energies.sum(), inputs, allow_unused=True))
            self.forces = _or_zeros(next(found), positions).neg()
            if strain is not None:
                self.virial = _or_zeros(next(found), strain)
            if channels is not None:
                chain.pull_on_charges = _or_zeros(next(found), channels)


def _or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if gradient is None else gradient
