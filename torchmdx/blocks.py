"""The reference networks in blocks of atoms, which bounds the memory of an evaluation with forces.

The derivative of a network needs every intermediate value of every edge: 10 MB per atom in float64. Here only the
tensors of atoms between layers are kept, [N,9,C]. Atoms are evaluated block by block with their edges, and the backward
pass evaluates each block a second time. The formulas are those of the reference networks, whose modules do the work.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from torchmdx.models.charge_equilibration import ChargeEquilibration, equilibrated
from torchmdx.models.cutoff import cosine_cutoff
from torchmdx.models.interaction import Interaction
from torchmdx.models.potential import Potential
from torchmdx.models.tensornet import TensorNet
from torchmdx.models.tensornet2 import TensorNet2
from torchmdx.models.tensors import from_direction, part_norms, squared_norm, to_components
from torchmdx.neighbors.edges import Edges
from torchmdx.runtime.cpu_memory import available_bytes
from torchmdx.system import Batch

# Bytes of the values of a block, and how many numbers each channel of an edge and of an atom has there (measured).
BLOCK_BYTES = 64e6
LARGER_ON_GPU = 4  # times as large on a GPU, where launches of many blocks take the time (measured)
NUMBERS_OF_AN_EDGE, NUMBERS_OF_AN_ATOM = 128, 1000
NUMBERS_WITHOUT_BLOCKS = 60  # without blocks, for each channel, edge and layer
LEAST_ESTIMATE = 2**30  # bytes; smaller ones are not compared with the memory of the machine


@dataclass(frozen=True)
class Block:
    """Atoms as targets, and their edges."""

    atoms: slice
    edges: slice


def blocks_of(edges: Edges, most_atoms: int, most_edges: int) -> list[Block]:
    """All atoms in blocks of at most so many atoms and edges, but at least one atom. Reads the list on the host."""
    ends, found, first = edges.row_ptr.tolist(), [], 0
    while first < edges.num_atoms:
        fitting = bisect_right(ends, ends[first] + most_edges) - 1
        last = min(max(fitting, first + 1), first + most_atoms, edges.num_atoms)
        found.append(Block(slice(first, last), slice(ends[first], ends[last])))
        first = last
    return found


class InBlocks(torch.autograd.Function):
    """Applies a function to each block of atoms, and evaluates it a second time for the derivative.

    work(block, *own, *sent, *of_edges): values [n,...] of the n atoms of a block, from tensors of these atoms, tensors
    of the sources of its edges, and tensors of its edges. kinds: the numbers of `own`, `sent` and `of_edges` among the
    tensors, which are given whole, for all atoms and edges.
    """

    @staticmethod
    def forward(
        ctx: Any, work: Callable[..., Tensor], plan: Plan, kinds: tuple[int, int, int], *tensors: Tensor
    ) -> Tensor:
        ctx.work, ctx.plan, ctx.kinds = work, plan, kinds
        ctx.save_for_backward(*tensors)
        out: Tensor | None = None
        for block in plan.blocks:
            value = work(block, *plan.parts(block, kinds, tensors))
            out = value.new_empty(plan.edges.num_atoms, *value.shape[1:]) if out is None else out
            out[block.atoms] = value
        assert out is not None
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors, plan = ctx.saved_tensors, ctx.plan
        wanted = ctx.needs_input_grad[3:]
        grads = [torch.zeros_like(tensor) if want else None for tensor, want in zip(tensors, wanted, strict=True)]
        for block in plan.blocks:
            parts = plan.parts(block, ctx.kinds, tensors)
            leaves = [part.detach().requires_grad_(want) for part, want in zip(parts, wanted, strict=True)]
            with torch.enable_grad():  # a weighted sum, since `grad_outputs` would import sympy, which takes seconds
                weighted = (ctx.work(block, *leaves) * grad[block.atoms]).sum()
            asked = [leaf for leaf, want in zip(leaves, wanted, strict=True) if want]
            found = iter(torch.autograd.grad(weighted, asked))
            for number, whole in enumerate(grads):
                if whole is not None:
                    plan.add(block, ctx.kinds, number, whole, next(found))
        return None, None, None, *grads


@dataclass(frozen=True, eq=False)
class Plan:
    """The blocks of a list of edges."""

    edges: Edges
    blocks: list[Block]

    def parts(self, block: Block, kinds: tuple[int, int, int], tensors: tuple[Tensor, ...]) -> list[Tensor]:
        """The parts of whole tensors that a block needs, as `InBlocks` describes."""
        own, sent, _ = kinds
        source = self.edges.source[block.edges]
        return [
            tensor[block.atoms]
            if number < own
            else tensor.index_select(0, source)
            if number < own + sent
            else tensor[block.edges]
            for number, tensor in enumerate(tensors)
        ]

    def add(self, block: Block, kinds: tuple[int, int, int], number: int, whole: Tensor, part: Tensor) -> None:
        """Adds the gradient by a part of a tensor to that by the whole one."""
        own, sent, _ = kinds
        if number < own:
            whole[block.atoms] += part
        elif number < own + sent:
            whole.index_add_(0, self.edges.source[block.edges], part)
        else:
            whole[block.edges] += part

    def target(self, block: Block) -> Tensor:
        """The target of each edge of a block, counted from the first atom of the block."""
        return self.edges.target[block.edges] - block.atoms.start

    def run(
        self,
        work: Callable[..., Tensor],
        own: tuple[Tensor, ...] = (),
        sent: tuple[Tensor, ...] = (),
        of_edges: tuple[Tensor, ...] = (),
    ) -> Tensor:
        """`InBlocks` of these tensors."""
        found: Tensor = InBlocks.apply(work, self, (len(own), len(sent), len(of_edges)), *own, *sent, *of_edges)
        return found


def plan_for(network: TensorNet | TensorNet2, edges: Edges, dtype: torch.dtype) -> Plan:
    """Blocks of about BLOCK_BYTES, larger on a GPU."""
    larger = LARGER_ON_GPU if edges.row_ptr.is_cuda else 1
    numbers = larger * BLOCK_BYTES / (network.config.num_channels * dtype.itemsize)
    most_edges, most_atoms = int(numbers / NUMBERS_OF_AN_EDGE), int(numbers / NUMBERS_OF_AN_ATOM)
    return Plan(edges, blocks_of(edges, max(1, most_atoms), max(1, most_edges)))


def bounded(potential: Potential, edges: Edges, *, create_graph: bool) -> Potential:
    """The potential for an evaluation with these edges, in blocks where that saves memory; sharing its weights.

    On a GPU, for networks of other classes and with create_graph it is the potential itself: the derivative of a block
    cannot be differentiated. Raises MemoryError, with an estimate, for more memory than the machine has available.
    """
    network = potential.network
    if potential.device.type != "cpu" or type(network) not in (TensorNet, TensorNet2) or not edges.num_atoms:
        return potential
    num_edges, config = int(edges.row_ptr[-1]), potential.config
    of_a_number = config.num_channels * potential.dtype.itemsize
    whole = num_edges * NUMBERS_WITHOUT_BLOCKS * (config.num_layers + 1) * of_a_number
    if create_graph:
        _require_memory(whole, edges.num_atoms, potential.dtype)
        return potential
    if whole <= BLOCK_BYTES:
        return potential
    # Two tensors of each layer, the first one, and their gradients.
    kept = 2 * 9 * (2 * config.num_layers + 1) * edges.num_atoms * of_a_number
    _require_memory(int(kept + BLOCK_BYTES), edges.num_atoms, potential.dtype)
    made = BlockedTensorNet(network) if type(network) is TensorNet else BlockedTensorNet2(network)
    return potential.with_network(made)


def _require_memory(estimate: int, num_atoms: int, dtype: torch.dtype) -> None:
    if estimate < LEAST_ESTIMATE or (available := available_bytes()) is None or estimate <= available:
        return
    name = str(dtype).removeprefix("torch.")
    ways = "a GPU or fewer atoms" if dtype == torch.float32 else "float32, a GPU or fewer atoms"
    raise MemoryError(
        f"an evaluation of {num_atoms:,} atoms in {name} on the CPU needs about {estimate / 1e9:.1f} GB of memory, but "
        f"{available / 1e9:.1f} GB are available: use {ways}"
    )


class BlockedTensorNet(nn.Module):
    """The features of a TensorNet; differentiable once, by the edge vectors."""

    def __init__(self, network: TensorNet) -> None:
        super().__init__()
        self.network = network

    def forward(self, edges: Edges, vectors: Tensor, atomic_numbers: Tensor, charge: Tensor) -> Tensor:
        """As `TensorNet.forward`."""
        network, plan = self.network, plan_for(self.network, edges, vectors.dtype)
        x = embed(network, plan, vectors, atomic_numbers)
        charge = charge * network.config.charge_factor
        for layer in cast(Iterable[Interaction], network.layers):
            y = plan.run(_sending(layer), (x,))
            x = plan.run(self._receiving(layer, plan, charge), (x, y), (y,) if layer.gathers else (), (vectors,))
        return plan.run(lambda block, x: network.features(x), (x,))

    def _receiving(self, layer: Interaction, plan: Plan, charge: Tensor) -> Callable[..., Tensor]:
        """The new tensors of a block from X and Y of its atoms, Y of the sources if it is gathered, and the vectors."""
        at_zero = radial_of(self.network, charge.new_zeros(1))
        alone = to_components(layer.filter(*at_zero)).detach() * self.network.config.self_message

        def work(block: Block, x: Tensor, y: Tensor, *of_edges: Tensor) -> Tensor:
            (*gathered, vectors), target = of_edges, plan.target(block)
            filters = layer.filter(*radial_of(self.network, torch.linalg.vector_norm(vectors, dim=-1)))
            m = (alone * y).index_add(0, target, to_components(filters) * (gathered[0] if gathered else y[target]))
            return layer.receive(_normalized(x), y, m, charge[block.atoms])

        return work


class BlockedTensorNet2(nn.Module):
    """The features and charges of a TensorNet2; differentiable once, by the edge vectors."""

    def __init__(self, network: TensorNet2) -> None:
        super().__init__()
        self.network = network

    def forward(self, edges: Edges, vectors: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """As `TensorNet2.forward`."""
        network, plan = self.network, plan_for(self.network, edges, vectors.dtype)
        x = embed(network, plan, vectors, batch.atomic_numbers)
        first, *others = (cast(ChargeEquilibration, module) for module in network.charges)
        charges = [_equilibrated(plan, first, x, batch)]
        for module, equilibrate in zip(network.layers, others, strict=True):
            layer, q = cast(Interaction, module), charges[-1]
            y = plan.run(_sending(layer), (x,))
            x = plan.run(self._receiving(layer, plan), (x, y, q), (y, q), (vectors,))
            charges.append(_equilibrated(plan, equilibrate, x, batch))

        def features(block: Block, x: Tensor) -> Tensor:
            return network.activation(network.readout(network.norm(torch.cat(part_norms(x), dim=-1))))

        return plan.run(features, (x,)), torch.cat(charges, dim=-1)

    def _receiving(self, layer: Interaction, plan: Plan) -> Callable[..., Tensor]:
        """As for TensorNet, with the charges of the atoms and of the sources."""

        def work(
            block: Block, x: Tensor, y: Tensor, q: Tensor, sent: Tensor, q_sent: Tensor, vectors: Tensor
        ) -> Tensor:
            target = plan.target(block)
            radial, envelope = radial_of(self.network, torch.linalg.vector_norm(vectors, dim=-1))
            filters = layer.filter(torch.cat([radial, q.index_select(0, target), q_sent], dim=-1), envelope)
            at_zero, envelope = radial_of(self.network, vectors.new_zeros(1))
            alone = layer.filter(torch.cat([at_zero.expand(len(x), -1), q, q], dim=-1), envelope)
            m = (to_components(alone) * y).index_add(0, target, to_components(filters) * sent)
            return layer.receive(_normalized(x), y, m, x.new_zeros(len(x)))

        return work


def embed(network: TensorNet | TensorNet2, plan: Plan, vectors: Tensor, atomic_numbers: Tensor) -> Tensor:
    """As `TensorEmbedding`, tensors [N,9,C]."""
    embedding = network.embedding
    with torch.no_grad():  # elements have no derivative by positions
        at_target, at_source = embedding.pair_shares(atomic_numbers)
        own = embedding.filter(*radial_of(network, vectors.new_zeros(1)))[0, 0] * (at_target + at_source)
        own = own * network.config.self_message

    def work(block: Block, at_target: Tensor, own: Tensor, at_source: Tensor, vectors: Tensor) -> Tensor:
        distance, target = torch.linalg.vector_norm(vectors, dim=-1), plan.target(block)
        pair = at_target.index_select(0, target) + at_source
        weights = to_components(embedding.filter(*radial_of(network, distance)) * pair[:, None])
        messages = weights * from_direction(vectors / distance[:, None])[:, :, None]
        x = messages.new_zeros(len(own), 9, embedding.num_channels).index_add(0, target, messages)
        return embedding.finish(x, own)

    return plan.run(work, (at_target, own), (at_source,), (vectors,))


def radial_of(network: TensorNet | TensorNet2, distance: Tensor) -> tuple[Tensor, Tensor]:
    """The radial basis [E,R] and the cutoff function [E,1]."""
    return network.basis(distance), cosine_cutoff(distance, float(network.config.cutoff))[:, None]


def _sending(layer: Interaction) -> Callable[..., Tensor]:
    return lambda block, x: layer.send(x)[1]


def _normalized(x: Tensor) -> Tensor:
    return x / (squared_norm(x) + 1)[:, None]


def _equilibrated(plan: Plan, equilibrate: ChargeEquilibration, x: Tensor, batch: Batch) -> Tensor:
    """As `ChargeEquilibration`, charges [N,K]: the network in blocks, then sums over systems."""

    def propose(block: Block, x: Tensor) -> Tensor:
        _, vector, symmetric = part_norms(x)
        proposed: Tensor = equilibrate.network(equilibrate.norm(torch.cat([x[:, 0], vector, symmetric], dim=-1)))
        return proposed

    proposed, root_weight = plan.run(propose, (x,)).chunk(2, dim=-1)
    return equilibrated(proposed, root_weight, batch, equilibrate.slack)
