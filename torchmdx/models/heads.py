"""Networks from an atom's features to its share of the energy."""

from torch import Tensor, nn

from torchmdx.models.radial import ACTIVATIONS


class ScalarHead(nn.Module):
    """One number an atom: Linear, activation, Linear; features [N,C] -> [N]."""

    def __init__(self, num_channels: int, activation: str) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(num_channels, num_channels // 2),
            ACTIVATIONS[activation](),
            nn.Linear(num_channels // 2, 1),
        )

    def forward(self, features: Tensor) -> Tensor:
        return self.network(features).squeeze(-1)
