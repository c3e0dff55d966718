"""The ways to evaluate a potential with fixed shapes: exact, from tables, on pairs, and by fused GPU kernels.

An engine takes positions, cell and edges that live in fixed buffers and launches work only: nothing is read on the
host, so that what it does can be captured.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from torchmdx.device_guard import device_of_positions, runs_on
from torchmdx.forces import differentiate, per_volume
from torchmdx.host import keep_freed_memory
from torchmdx.models import pairwise
from torchmdx.models.compiled.build import library
from torchmdx.models.fast import FastTensorNet
from torchmdx.models.fast_charged import FastTensorNet2
from torchmdx.models.near_pairs import NearList
from torchmdx.models.pairs import PairList
from torchmdx.models.potential import Potential
from torchmdx.models.priors.base import shapes_are_fixed
from torchmdx.models.tabulated import TabulatedTensorNet, table_of
from torchmdx.models.tensornet import TensorNet
from torchmdx.models.tensornet2 import TensorNet2
from torchmdx.neighbors.capacity import with_head_room
from torchmdx.neighbors.edges import Edges
from torchmdx.neighbors.reverse import find_reverse
from torchmdx.outputs import Outputs
from torchmdx.prior_engine import PriorKernelEngine
from torchmdx.system import Batch

PRECISIONS = ("float64", "float32", "tf32", "bfloat16")


class Engine(Protocol):
    """Evaluates one batch again and again, at changing positions and cell."""

    name: str
    # Largest error of tabulated filters against the exact ones, relative to the largest; 0 where there is no table.
    table_error: float

    def reserve(self, capacity: int) -> None:
        """Makes room for as many edges; before the first run, and whenever the list has grown."""

    def run(self, positions: Tensor, cell: Tensor, edges: Edges, *, forces: bool = True) -> Outputs:
        """Launches one evaluation; what it returns may be the same tensors every time.

        positions and cell are as exact as the potential, or more.
        forces=False: energies only; the forces and stress of the answer are stale.
        """


class ModelEngine:
    """The potential as it is, differentiated by autograd: exact, or from tables if its network is tabulated."""

    def __init__(self, potential: Potential, batch: Batch, *, stress: bool, tabulated: bool) -> None:
        self.name, self.table_error = "exact", 0.0
        self.potential = potential
        if tabulated:
            network = TabulatedTensorNet(potential.network)
            self.potential = potential.with_network(network)
            self.name, self.table_error = "table", network.error
        self.batch, self.stress = batch, stress

    def reserve(self, capacity: int) -> None:
        pass  # autograd makes its own room

    def run(self, positions: Tensor, cell: Tensor, edges: Edges, *, forces: bool = True) -> Outputs:
        # Always with forces: autograd's graph would have to be thrown away, and nobody asks the exact model for speed.
        batch = replace(self.batch, positions=positions, cell=cell)
        result = differentiate(self.potential, batch, edges, stress=self.stress)
        assert result.forces is not None
        return Outputs(result.energy, result.energies, result.forces.to(self.potential.dtype), result.stress)


class PairwiseEngine:
    """The network of training, without its graph: any TensorNet or TensorNet2, with any priors."""

    table_error = 0.0

    def __init__(self, potential: Potential, batch: Batch, *, stress: bool) -> None:
        self.name = f"pairs, {str(potential.dtype).removeprefix('torch.')}"
        # Weights that ask for gradients would be given them, in every backward pass.
        self.potential = copy.deepcopy(potential).requires_grad_(False)
        self.batch, self.stress = batch, stress
        # Priors may see farther than the network, which then has a list of its own.
        cutoff = float(potential.config.cutoff)
        self.near = NearList(cutoff) if potential.search_cutoff(batch) > cutoff else None

    def reserve(self, capacity: int) -> None:
        if self.near is not None:
            self.near.capacity = None
        self.reverse = torch.zeros(capacity, dtype=torch.int32, device=self.batch.positions.device)

    @runs_on(device_of_positions)
    def run(self, positions: Tensor, cell: Tensor, edges: Edges, *, forces: bool = True) -> Outputs:
        find_reverse(edges, self.reverse)
        batch, stress = replace(self.batch, positions=positions, cell=cell), self.stress and forces
        result = pairwise.differentiate_pairwise(
            self.potential, batch, edges, self.reverse,
            forces=forces, stress=stress, create_graph=False, near=self._nearer(batch, edges),
        )  # fmt: skip
        if result.forces is None:
            stale = torch.zeros_like(cell) if self.stress else None
            nothing = torch.zeros_like(positions, dtype=self.potential.dtype)
            return Outputs(result.energy, result.energies, nothing, stale)
        return Outputs(result.energy, result.energies, result.forces.to(self.potential.dtype), result.stress)

    def _nearer(self, batch: Batch, edges: Edges) -> PairList | None:
        """The network's own list, if it has one.

        Its capacity is chosen at the first run after `reserve`, which reads the device: it must not be captured.
        """
        if self.near is None:
            return None
        if self.near.capacity is None:
            if shapes_are_fixed(batch.positions):
                return None
            self.near.capacity = with_head_room(self.near.count(batch, edges, self.reverse), batch.num_atoms)
        return self.near.pairs(batch, edges, self.reverse)


def kernels_for(potential: Potential) -> type[FastTensorNet]:
    """The class of kernels that might evaluate this potential; its `why_not` knows whether they do."""
    return FastTensorNet2 if isinstance(potential.network, TensorNet2) else FastTensorNet


def make_kernels(potential: Potential, precision: str, *, priors: bool) -> FastTensorNet:
    """A potential's kernels. priors: leave them out; without this a potential that has any is refused."""
    kind = kernels_for(potential)
    # The fifth degree needs a tenth of the intervals of the third: the table stays in the GPU's first-level caches.
    table = table_of(potential.network, 5, kind.tabulated)
    return kind(potential, precision=precision, table=table, priors=priors)


class KernelEngine:
    """TensorNet or TensorNet2 in fused kernels on a GPU, forward and backward."""

    def __init__(self, potential: Potential, batch: Batch, *, stress: bool, precision: str) -> None:
        self.model = make_kernels(potential, precision, priors=False)
        self.name, self.table_error = f"kernels, {precision}", self.model.table.error
        self.batch, self.stress = batch, stress

    def reserve(self, capacity: int) -> None:
        self.model.allocate(self.batch.num_atoms, self.batch.num_systems, capacity)
        self.name = f"kernels, {self.model.precision_used}"

    def place_results(self, energy: Tensor, energies: Tensor, forces: Tensor) -> None:
        """From now on, until `reserve`, results are written into these: [S] and [N] float64, [N,3] float32."""
        buffers = self.model.buffers
        assert buffers is not None
        buffers.energy, buffers.energies, buffers.forces = energy, energies, forces

    def share_scratch(self, other: KernelEngine) -> None:
        """Takes the other's scratch where it has the same shape; the two must never run at the same time."""
        own, theirs = self.model.buffers, other.model.buffers
        assert own is not None
        assert theirs is not None
        for name, tensor in theirs.tensors.items():
            if name in own.tensors and own.tensors[name].shape == tensor.shape:
                own.tensors[name] = tensor

    @runs_on(device_of_positions)
    def run(self, positions: Tensor, cell: Tensor, edges: Edges, *, forces: bool = True) -> Outputs:
        batch = self.batch
        inputs = (positions, batch.atomic_numbers, batch.system_index, cell, batch.charge, edges)
        result = self.model.run(*inputs, forces=forces, virial=self.stress and forces)
        stress = per_volume(result.virial, cell) if self.stress else None
        return Outputs(result.energy, result.energies, result.forces, stress)


def choose_engine(potential: Potential, batch: Batch, *, stress: bool, precision: str) -> tuple[Engine, str]:
    """The fastest engine for this potential on its device, and why it is that one."""
    if batch.positions.device.type == "cpu":
        keep_freed_memory()
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    if precision == "float64":
        return ModelEngine(potential, batch, stress=stress, tabulated=False), "float64 takes the exact model"
    if potential.device.type == "cuda":
        reason = kernels_for(potential).why_not(potential, priors=True)
        if reason is None and potential.prior_configs:
            model = make_kernels(potential, precision, priors=True)
            return PriorKernelEngine(model, potential, batch, stress=stress), "fused kernels, and priors beside them"
        if reason is None:
            return KernelEngine(potential, batch, stress=stress, precision=precision), "fused kernels"
        if pairwise.serves(potential):
            return PairwiseEngine(potential, batch, stress=stress), f"network of pairs: {reason}"
        return ModelEngine(potential, batch, stress=stress, tabulated=False), f"exact model: {reason}"
    if precision in ("tf32", "bfloat16"):
        raise ValueError(f"precision {precision!r} needs a GPU, got a potential on the CPU")
    if type(potential.network) is not TensorNet:  # one derived from it may have filters of another kind
        why = f"there are tables for a TensorNet alone, got a {type(potential.network).__name__}"
        if pairwise.serves(potential) and library() is not None:
            return PairwiseEngine(potential, batch, stress=stress), f"network of pairs: {why}"
        return ModelEngine(potential, batch, stress=stress, tabulated=False), f"exact model: {why}"
    # The network alone is replaced: heads and priors are those of the exact model.
    return ModelEngine(potential, batch, stress=stress, tabulated=True), "filters from tables on the CPU"
