"""Networks from an atom's features to its share of the energy."""

from torch import Tensor, nn

from torchmdx.models.activations import ACTIVATIONS


class ScalarHead(nn.Module):
    """One number an atom: Linear, activation, more such pairs if asked for, Linear; features [N,C] -> [N]."""

    def __init__(self, num_channels: int, activation: str, num_more_layers: int = 0) -> None:
        super().__init__()
        half = num_channels // 2
        parts = [nn.Linear(num_channels, half), ACTIVATIONS[activation]()]
        for _ in range(num_more_layers):
            parts += [nn.Linear(half, half), ACTIVATIONS[activation]()]
        self.network = nn.Sequential(*parts, nn.Linear(half, 1))

    def forward(self, features: Tensor) -> Tensor:
        return self.network(features).squeeze(-1)
