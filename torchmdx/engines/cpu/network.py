"""TensorNet with its filters read from tables: the fast path of the CPU, in C where it compiled."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from torchmdx.models.compiled.messages import EmbeddingSum, MessageSum, sliced
from torchmdx.models.interaction import Interaction
from torchmdx.models.pairwise_network import gated, interaction, read
from torchmdx.models.table import BOUND, TabulatedFilters, tabulate
from torchmdx.models.tensornet import TensorNet
from torchmdx.models.tensornet2 import TensorNet2
from torchmdx.models.tensors import from_direction, spread
from torchmdx.neighbors.edges import Edges

# A table takes a second or two to make, and some MB. The most recent ones are kept, whichever copy they were made for.
MOST_KEPT = 16
_kept: dict[tuple[str, int], TabulatedFilters] = {}
_lock = threading.Lock()


def table_of(
    network: TensorNet | TensorNet2, degree: int, of: Callable[[Any], nn.Module] = lambda network: network
) -> TabulatedFilters:
    """The network's table in its dtype and on its device, within BOUND if that can be reached.

    A table is made once for the same weights, to the last bit: what they are is read, not when they were written.
    of: from the network to what has the filters.
    """
    filters = of(network)
    key = fingerprint(filters), degree
    with _lock:
        table = _kept.get(key)
    if table is None:
        table = tabulate(filters, BOUND, network.readout.weight.dtype, degree)
    with _lock:
        _kept.pop(key, None)
        _kept[key] = table  # at the end: the newest
        while len(_kept) > MOST_KEPT:
            del _kept[next(iter(_kept))]
    return table


def fingerprint(network: nn.Module) -> str:
    """SHA-256 of a network's modules and settings, and the bits of its weights and buffers; reads the device."""
    digest = hashlib.sha256(f"{network} {getattr(network, 'config', None)}".encode())
    with torch.no_grad():
        for name, tensor in (*network.named_parameters(), *network.named_buffers()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {tensor.device}".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class TabulatedTensorNet(nn.Module):
    """The features of a TensorNet whose weights no longer change, differentiable once by the edge vectors.

    The energy is that of the tabulated filters, and the forces are its exact derivative, so energy is conserved.
    `error` is the largest measured error of the filters and their slopes, relative to the largest of them.
    """

    def __init__(self, network: TensorNet) -> None:
        super().__init__()
        self.network = network
        # The fifth degree needs a tenth of the intervals of the third, so that the table stays in the cache.
        self.table = table_of(network, degree=5)
        self.tables = [(sliced(c), own) for c, own in zip(self.table.coefficients, self.table.own, strict=True)]
        self.error = self.table.error

    def forward(self, edges: Edges, vectors: Tensor, atomic_numbers: Tensor, charge: Tensor) -> Tensor:
        """Features [N,C] from edge vectors [E,3] Å, atomic_numbers [N] and the charge [N] of each atom's system."""
        distance = torch.linalg.vector_norm(vectors, dim=-1)
        components = from_direction(vectors / distance[:, None]).contiguous()
        stretch = self.table.stretch
        # Beyond the cutoff (padding, skin) filters are zero; t = 0 of the first interval is where they have become so.
        inside = distance < stretch.cutoff
        x = torch.where(inside, stretch(distance.clamp(max=stretch.cutoff)), 0.0)
        interval = x.detach().to(torch.int32).clamp(0, stretch.num_intervals - 1)
        t = x - interval

        network = self.network
        (coefficients, own), *others = self.tables
        at_target, at_source = network.embedding.pair_shares(atomic_numbers)
        sums = EmbeddingSum.apply(t, components, at_target, at_source.contiguous(), interval, coefficients, edges)
        alone = own[0] * (at_target + at_source)
        tensors = gated(network.embedding, torch.cat([sums[:, :1] + alone[:, None], sums[:, 1:]], dim=1))
        for module, (coefficients, own) in zip(network.layers, others, strict=True):

            def received(y: Tensor, coefficients: Tensor = coefficients, own: Tensor = own) -> Tensor:
                return spread(own) * y + MessageSum.apply(y, t, interval, coefficients, edges)

            tensors = interaction(cast(Interaction, module), tensors, charge, received)
        return read(network, tensors)
