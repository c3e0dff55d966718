"""The reference networks in blocks of atoms, which bounds the memory of an evaluation with forces.

The derivative of a network needs every intermediate value of every edge: 10 MB per atom in float64. Here only the
tensors of atoms between layers are kept, [N,9,C]. Atoms are evaluated block by block with their edges, and the backward
pass evaluates each block a second time. The formulas are those of the reference networks, whose modules do the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from torchmdx.evaluation.block_plan import ALL, AtomBlock, BlockPlan, Extent, blocks_of
from torchmdx.models.charge_equilibration import ChargeEquilibration, equilibrated
from torchmdx.models.cutoff import cosine_cutoff
from torchmdx.models.embedding import geometry
from torchmdx.models.interaction import Interaction, message, normalised
from torchmdx.models.potential import Potential
from torchmdx.models.qet import QET
from torchmdx.models.tensornet import TensorNet
from torchmdx.models.tensornet2 import TensorNet2
from torchmdx.models.tensors import from_direction, invariants, part_norms, to_components
from torchmdx.neighbors.edges import Edges
from torchmdx.runtime.cpu_memory import available_bytes
from torchmdx.structures.system import Batch

# Bytes of the values of a block, and how many numbers each channel of an edge and of an atom has there (measured).
BLOCK_BYTES = 64e6
# Times as large on a GPU, where launches of many blocks take the time: at least, and where an eighth of the memory that
# is free has room for it.
LARGER_ON_GPU, MOST_ON_GPU = 4, 32
NUMBERS_OF_AN_EDGE, NUMBERS_OF_AN_ATOM = 128, 1000
NUMBERS_WITHOUT_BLOCKS = 60  # without blocks, for each channel, edge and layer
LEAST_ESTIMATE = 2**30  # bytes; smaller ones are not compared with the memory of the machine


def plan_for(
    network: TensorNet | TensorNet2, edges: Edges, dtype: torch.dtype, divided_at: Sequence[int] = ()
) -> BlockPlan:
    """Blocks of about BLOCK_BYTES, larger on a GPU; divided_at: as for `blocks_of`."""
    numbers = _block_bytes(edges.row_ptr.device) / (network.config.num_channels * dtype.itemsize)
    most_edges, most_atoms = int(numbers / NUMBERS_OF_AN_EDGE), int(numbers / NUMBERS_OF_AN_ATOM)
    return BlockPlan(edges, blocks_of(edges, max(1, most_atoms), max(1, most_edges), divided_at))


def _block_bytes(device: torch.device) -> float:
    if device.type != "cuda":
        return BLOCK_BYTES
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by torch, of what it has
    free = torch.cuda.mem_get_info(device)[0] + unused
    return min(max(LARGER_ON_GPU * BLOCK_BYTES, free / 8), MOST_ON_GPU * BLOCK_BYTES)


def bounded(potential: Potential, edges: Edges, *, create_graph: bool) -> Potential:
    """The potential for an evaluation with these edges, in blocks where that saves memory; sharing its weights.

    On a GPU, for networks of other classes and with create_graph it is the potential itself: the derivative of a block
    cannot be differentiated.

    Raises:
        MemoryError: With an estimate, for more memory than the machine has available.
    """
    network = potential.network
    made = in_blocks(network)
    if potential.device.type != "cpu" or made is None or not edges.num_atoms:
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
    return potential.with_network(made)


def in_blocks(network: nn.Module) -> nn.Module | None:
    """The same network in blocks, sharing its weights; None for networks of other classes, and for one in blocks."""
    if type(network) is TensorNet:
        return BlockedTensorNet(network)
    if type(network) is QET and type(network.tensornet) is TensorNet:
        return network.with_tensornet(BlockedTensorNet(network.tensornet))
    return BlockedTensorNet2(network) if type(network) is TensorNet2 else None


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
    """The features of a TensorNet; differentiable once, by the edge vectors.

    Args:
        within ([2L+2]): For atoms sorted by their hops from the first ones, how many have at most k hops. Then the
            features are those of the atoms with at most L+1 hops, which are all that depend on the positions of the
            first ones; the derivative is right by these positions only, and layers evaluate no other atoms than these
            need.
    """

    def __init__(self, network: TensorNet, within: Sequence[int] = ()) -> None:
        super().__init__()
        self.network, self.within = network, within

    def forward(self, edges: Edges, vectors: Tensor, atomic_numbers: Tensor, charge: Tensor) -> Tensor:
        """As `TensorNet.forward`."""
        network, plan = self.network, plan_for(self.network, edges, vectors.dtype, self.within)
        x = embed(network, plan, vectors, atomic_numbers, self._extent(0))
        charge = charge * network.config.charge_factor
        for number, module in enumerate(network.layers):
            layer = cast(Interaction, module)
            y = plan.run(_sending(layer), (x,), extent=self._extent(number))
            sent = (y,) if layer.gathers else ()
            x = plan.run(self._receiving(layer, plan, charge), (x, y), sent, (vectors,), self._extent(number + 1))
        return plan.run(lambda block, x: network.features(x), (x,), extent=self._extent(len(network.layers)))

    def _extent(self, layers: int) -> Extent:
        """Which atoms are evaluated after a number of layers, and which of these depend on the first atoms."""
        if not self.within:
            return ALL
        return Extent(self.within[2 * len(self.network.layers) + 1 - layers], self.within[layers + 1])

    def _receiving(self, layer: Interaction, plan: BlockPlan, charge: Tensor) -> Callable[..., Tensor]:
        """The new tensors of a block from X and Y of its atoms, Y of the sources if it is gathered, and the vectors."""
        at_zero = radial_of(self.network, charge.new_zeros(1))
        alone = layer.filter(*at_zero).detach() * self.network.config.self_message

        def work(block: AtomBlock, x: Tensor, y: Tensor, *of_edges: Tensor) -> Tensor:
            (*gathered, vectors), target = of_edges, plan.target(block)
            filters = layer.filter(*radial_of(self.network, torch.linalg.vector_norm(vectors, dim=-1)))
            m = message(target, filters, alone, y, layer.carried(y, target, gathered[0] if gathered else None))
            return layer.receive(normalised(x), y, m, charge[block.atoms])

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

        def features(block: AtomBlock, x: Tensor) -> Tensor:
            return network.activation(network.readout(network.norm(invariants(x))))

        return plan.run(features, (x,)), torch.cat(charges, dim=-1)

    def _receiving(self, layer: Interaction, plan: BlockPlan) -> Callable[..., Tensor]:
        """As for TensorNet, with the charges of the atoms and of the sources."""

        def work(
            block: AtomBlock, x: Tensor, y: Tensor, q: Tensor, sent: Tensor, q_sent: Tensor, vectors: Tensor
        ) -> Tensor:
            target = plan.target(block)
            radial, envelope = radial_of(self.network, torch.linalg.vector_norm(vectors, dim=-1))
            filters = layer.filter(torch.cat([radial, q.index_select(0, target), q_sent], dim=-1), envelope)
            at_zero, envelope = radial_of(self.network, vectors.new_zeros(1))
            alone = layer.filter(torch.cat([at_zero.expand(len(x), -1), q, q], dim=-1), envelope)
            m = message(target, filters, alone, y, sent)
            return layer.receive(normalised(x), y, m, x.new_zeros(len(x)))

        return work


def embed(
    network: TensorNet | TensorNet2, plan: BlockPlan, vectors: Tensor, atomic_numbers: Tensor, extent: Extent = ALL
) -> Tensor:
    """As `TensorEmbedding`, tensors [N,9,C]."""
    embedding = network.embedding
    with torch.no_grad():  # elements have no derivative by positions
        at_target, at_source = embedding.pair_shares(atomic_numbers)
        own = embedding.filter(*radial_of(network, vectors.new_zeros(1)))[0, 0] * (at_target + at_source)
        own = own * network.config.self_message

    def work(block: AtomBlock, at_target: Tensor, own: Tensor, at_source: Tensor, vectors: Tensor) -> Tensor:
        (distance, direction), target = geometry(vectors), plan.target(block)
        pair = at_target.index_select(0, target) + at_source
        weights = to_components(embedding.filter(*radial_of(network, distance)) * pair[:, None])
        messages = weights * from_direction(direction)[:, :, None]
        x = messages.new_zeros(len(own), 9, embedding.num_channels).index_add(0, target, messages)
        return embedding.finish(x, own)

    return plan.run(work, (at_target, own), (at_source,), (vectors,), extent)


def radial_of(network: TensorNet | TensorNet2, distance: Tensor) -> tuple[Tensor, Tensor]:
    """The radial basis [E,R] and the cutoff function [E,1]."""
    return network.basis(distance), cosine_cutoff(distance, float(network.config.cutoff))[:, None]


def _sending(layer: Interaction) -> Callable[..., Tensor]:
    return lambda block, x: layer.send(x)[1]


def _equilibrated(plan: BlockPlan, equilibrate: ChargeEquilibration, x: Tensor, batch: Batch) -> Tensor:
    """As `ChargeEquilibration`, charges [N,K]: the network in blocks, then sums over systems."""

    def propose(block: AtomBlock, x: Tensor) -> Tensor:
        _, vector, symmetric = part_norms(x)
        proposed: Tensor = equilibrate.network(equilibrate.norm(torch.cat([x[:, 0], vector, symmetric], dim=-1)))
        return proposed

    proposed, root_weight = plan.run(propose, (x,)).chunk(2, dim=-1)
    return equilibrated(proposed, root_weight, batch, equilibrate.slack)
