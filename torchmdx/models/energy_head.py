"""Heads: networks from the features of an atom to its output, a number."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from torchmdx.models.activations import ACTIVATIONS


def _hidden_layers(num_inputs: int, width: int, activation: str, count: int) -> list[nn.Module]:
    """`count` times Linear and activation."""
    layers: list[nn.Module] = []
    for k in range(count):
        layers += [nn.Linear(width if k else num_inputs, width), ACTIVATIONS[activation]()]
    return layers


def _last_size(network: nn.Sequential) -> int:
    """Inputs of the last layer of a network, with that of its bias."""
    return cast(nn.Linear, network[-1]).in_features + 1


class ScalarHead(nn.Module):
    """Features [N,C] -> outputs [N]: Linear, activation, `num_more_layers` more of both, and a last Linear.

    Hidden layers have C/2 channels.
    """

    def __init__(self, num_channels: int, activation: str, num_more_layers: int = 0) -> None:
        super().__init__()
        half = num_channels // 2
        layers = _hidden_layers(num_channels, half, activation, 1 + num_more_layers)
        self.network = nn.Sequential(*layers, nn.Linear(half, 1))

    def forward(self, features: Tensor) -> Tensor:
        return self.network(features).squeeze(-1)

    @property
    def last_layer_size(self) -> int:
        """D of `last_layer_inputs`."""
        return _last_size(self.network)

    def last_layer_inputs(self, features: Tensor) -> Tensor:
        """Derivative [N,D] of the outputs by weight and bias of the last Linear: its inputs, and 1."""
        hidden = self.network[:-1](features)
        return torch.cat([hidden, torch.ones_like(hidden[:, :1])], dim=-1)


class GatedHead(nn.Module):
    """Features [N,C] -> outputs [N]: layers(x) · sigmoid(gates(x)), two networks like that of `ScalarHead`.

    Hidden layers have C channels. num_inputs: of features, if not C: the first hidden layer has as many channels.
    """

    def __init__(
        self, num_channels: int, activation: str, num_more_layers: int = 0, num_inputs: int | None = None
    ) -> None:
        super().__init__()
        first = num_channels if num_inputs is None else num_inputs
        self.layers, self.gates = (
            nn.Sequential(
                *_hidden_layers(first, first, activation, 1),
                *_hidden_layers(first, num_channels, activation, num_more_layers),
                nn.Linear(num_channels if num_more_layers else first, 1),
            )
            for _ in range(2)
        )

    def forward(self, features: Tensor) -> Tensor:
        return (self.layers(features) * torch.sigmoid(self.gates(features))).squeeze(-1)

    @property
    def last_layer_size(self) -> int:
        """D of `last_layer_inputs`."""
        return _last_size(self.layers)

    def last_layer_inputs(self, features: Tensor) -> Tensor:
        """Derivative [N,D] of the outputs by weight and bias of the last Linear of `layers`; gates are given."""
        hidden = self.layers[:-1](features)
        return torch.cat([hidden, torch.ones_like(hidden[:, :1])], dim=-1) * torch.sigmoid(self.gates(features))


HEADS: dict[str, type[ScalarHead] | type[GatedHead]] = {"scalar": ScalarHead, "gated": GatedHead}
