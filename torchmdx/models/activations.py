"""Activation functions, by name."""

import math

from torch import Tensor, nn


class ShiftedSoftplus(nn.Module):
    """log(1 + exp(x)) - log 2."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.softplus(x) - math.log(2.0)


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "silu": nn.SiLU,
    "swish": nn.SiLU,
    "ssp": ShiftedSoftplus,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "mish": nn.Mish,
}
