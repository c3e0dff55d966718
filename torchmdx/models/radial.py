"""Radial bases: R functions of the distance, [E] -> [E,R]."""

import math

import torch
from torch import Tensor, nn

from torchmdx.models.cutoff import cosine_cutoff


class ExpNormalBasis(nn.Module):
    """φ_k(r) = f(r) exp(-β_k (exp(-α r) - μ_k)²),  α = 5 / cutoff

    | variable | symbol |
    |---|---|
    | means | μ_k [R], equally spaced from exp(-cutoff) to 1 |
    | betas | β_k [R], (2 / R · (1 - exp(-cutoff)))⁻² |
    | nearness | exp(-α r) |

    Gaussians in exp(-α r), which are densest at short distances, times the cosine cutoff f(r), as in PhysNet.
    """

    def __init__(self, num_radial: int, cutoff: float, trainable: bool = False) -> None:
        super().__init__()
        self.cutoff = cutoff
        self.alpha = 5.0 / cutoff
        start = math.exp(-cutoff)
        means = torch.linspace(start, 1.0, num_radial)
        betas = torch.full((num_radial,), (2.0 / num_radial * (1.0 - start)) ** -2)
        self.means = nn.Parameter(means, requires_grad=trainable)
        self.betas = nn.Parameter(betas, requires_grad=trainable)

    def forward(self, distance: Tensor) -> Tensor:
        nearness = torch.exp(-self.alpha * distance)[:, None]
        bumps = torch.exp(-self.betas * (nearness - self.means) ** 2)
        return cosine_cutoff(distance, self.cutoff)[:, None] * bumps


class GaussianBasis(nn.Module):
    """φ_k(r) = exp(c (r - o_k)²),  c = -1 / (2 spacing²): Gaussians at equally spaced offsets o_k, 0 to the cutoff."""

    def __init__(self, num_radial: int, cutoff: float, trainable: bool = False) -> None:
        super().__init__()
        offsets = torch.linspace(0.0, cutoff, num_radial)
        spacing = cutoff / (num_radial - 1)
        self.offsets = nn.Parameter(offsets, requires_grad=trainable)
        self.coefficient = nn.Parameter(torch.tensor(-0.5 / spacing**2), requires_grad=trainable)

    def forward(self, distance: Tensor) -> Tensor:
        return torch.exp(self.coefficient * (distance[:, None] - self.offsets) ** 2)


RADIAL_BASES: dict[str, type[ExpNormalBasis] | type[GaussianBasis]] = {
    "expnorm": ExpNormalBasis,
    "gauss": GaussianBasis,
}
