"""The weights of a head as the kernels read them, padded to powers of two with zeros."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchmdx.engines.plan.padding import power_of_two
from torchmdx.models.energy_head import GatedHead, ScalarHead
from torchmdx.models.potential import Potential


def padded(values: Tensor, *shape: int) -> Tensor:
    """Values in the leading corner of a tensor of zeros, float32."""
    out = torch.zeros(shape, dtype=torch.float32, device=values.device)
    out[tuple(slice(size) for size in values.shape)] = values.detach()
    return out


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """Matrices and biases of a head; `into` has inputs, `back` outputs as rows.

    ::

        | field | plain head of D hidden layers | gated head of D hidden layers |
        |---|---|---|
        | width | hidden channels H | C |
        | into | [C,H] | [D,2C²]: [C,2C] of the first layer, [2,C,C] of the others, layers before gates |
        | back | [H,C] | [D,2C²]: [2C,C] of the first layer, [2,C,C] of the others |
        | more, more_back | [D-1,H,H] of the layers beyond the first | [0,C,C] |
        | bias | [D,H] | [D,2C] |
        | last | [H] | [2,C] |
        | constants, float64 | scale, last bias | scale, last bias of layers, last bias of gates |
    """

    width: int
    num_layers: int
    gated: bool
    into: Tensor
    back: Tensor
    more: Tensor
    more_back: Tensor
    bias: Tensor
    last: Tensor
    constants: Tensor

    @classmethod
    def pack(cls, potential: Potential, channels: int) -> HeadWeights:
        """channels: C, padded."""
        head, scale = potential.head, potential.scale
        if isinstance(head, GatedHead):
            return _gated(head, scale, channels)
        assert isinstance(head, ScalarHead)
        first, *others, last = _linear_maps(head.network)
        width = power_of_two(len(first.bias))
        more = first.weight.new_zeros(len(others), width, width, dtype=torch.float32)
        for matrix, linear in zip(more, others, strict=True):
            matrix.copy_(padded(linear.weight.T, width, width))
        return cls(
            width=width,
            num_layers=1 + len(others),
            gated=False,
            into=padded(first.weight.T, channels, width),
            back=padded(first.weight, width, channels),
            more=more,
            more_back=more.transpose(1, 2).contiguous(),
            bias=torch.stack([padded(linear.bias, width) for linear in (first, *others)]),
            last=padded(last.weight[0], width),
            constants=torch.stack([scale, last.bias[0].double()]).detach(),
        )

    def layers(self, matrices: Tensor) -> list[Tensor]:
        """Of `into` or `back` of a gated head, the matrices of each layer as [rows,columns] or [2,C,C].

        None of a plain head, which has kernels of its own.
        """
        if not self.gated:
            return []
        c = self.width
        shapes = [(-1, 2 * c if matrices is self.into else c), *[(2, c, c)] * (self.num_layers - 1)]
        return [matrix.reshape(shape) for matrix, shape in zip(matrices, shapes, strict=True)]


def _gated(head: GatedHead, scale: Tensor, c: int) -> HeadWeights:
    networks = _linear_maps(head.layers), _linear_maps(head.gates)
    hidden = list(zip(networks[0][:-1], networks[1][:-1], strict=True))
    lasts = [network[-1] for network in networks]

    def both(k: int) -> Tensor:
        """[2,C,C] of hidden layer k, with outputs as rows."""
        return torch.stack([padded(linear.weight, c, c) for linear in hidden[k]])

    pairs = [both(k) for k in range(len(hidden))]
    into = [pairs[0].flatten(0, 1).T, *(pair.transpose(1, 2) for pair in pairs[1:])]
    return HeadWeights(
        width=c,
        num_layers=len(hidden),
        gated=True,
        into=torch.stack([matrix.reshape(-1) for matrix in into]),
        back=torch.stack([pair.reshape(-1) for pair in pairs]),
        more=pairs[0].new_zeros(0, c, c),
        more_back=pairs[0].new_zeros(0, c, c),
        bias=torch.stack([torch.cat([padded(linear.bias, c) for linear in pair]) for pair in hidden]),
        last=torch.stack([padded(linear.weight[0], c) for linear in lasts]),
        constants=torch.stack([scale, *(linear.bias[0].double() for linear in lasts)]).detach(),
    )


def _linear_maps(network: nn.Module) -> list[nn.Linear]:
    return [module for module in network.children() if isinstance(module, nn.Linear)]
