"""TensorNet with tabulated filters, for steps on the CPU, in C if it compiled."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from torchmdx.engines.cpu.messages import EmbeddingSum, MessageSum, sliced
from torchmdx.engines.filter_table import table_of
from torchmdx.engines.pairs.network import gated, interaction, read
from torchmdx.models.interaction import Interaction
from torchmdx.models.tensornet import TensorNet
from torchmdx.models.tensors import from_direction, to_components
from torchmdx.neighbors.edges import Edges


class TabulatedTensorNet(nn.Module):
    """The features of a TensorNet with fixed weights, differentiable once by the edge vectors.

    Forces are the exact derivative of the energy with tabulated filters, so energy is conserved.
    `error` is the largest measured error of the filters and their slopes, relative to the largest of them.
    """

    def __init__(self, network: TensorNet) -> None:
        super().__init__()
        self.network = network
        self.table = table_of(network)
        self.tables = [(sliced(c), own) for c, own in zip(self.table.coefficients, self.table.own, strict=True)]
        self.error = self.table.error

    def forward(self, edges: Edges, vectors: Tensor, atomic_numbers: Tensor, charge: Tensor) -> Tensor:
        """Features [N,C] from edge vectors [E,3] Å, atomic_numbers [N] and the charge [N] of each atom's system."""
        distance = torch.linalg.vector_norm(vectors, dim=-1)
        components = from_direction(vectors / distance[:, None]).contiguous()
        stretch = self.table.stretch
        # Beyond the cutoff (padding, skin) t = 0 of the first interval is used, where filters are zero.
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
                return to_components(own) * y + MessageSum.apply(y, t, interval, coefficients, edges)

            factor_of = charge if network.config.charge_factor else None
            tensors = interaction(cast(Interaction, module), tensors, factor_of, received)
        return read(network, tensors)
