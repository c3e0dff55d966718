"""The head: a network from the features of an atom to its output, a number."""

from torch import Tensor, nn

from torchmdx.models.activations import ACTIVATIONS


class ScalarHead(nn.Module):
    """Features [N,C] -> outputs [N]: Linear, activation, `num_more_layers` more of both, and a last Linear."""

    def __init__(self, num_channels: int, activation: str, num_more_layers: int = 0) -> None:
        super().__init__()
        half = num_channels // 2
        layers = [nn.Linear(num_channels, half), ACTIVATIONS[activation]()]
        for _ in range(num_more_layers):
            layers += [nn.Linear(half, half), ACTIVATIONS[activation]()]
        self.network = nn.Sequential(*layers, nn.Linear(half, 1))

    def forward(self, features: Tensor) -> Tensor:
        return self.network(features).squeeze(-1)
