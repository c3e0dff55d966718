"""Radial bases: R functions of the distance, [E] -> [E,R]."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchmdx.models.cutoff import cosine_cutoff


class ExpNormalBasis(nn.Module):
    """φ_k(r) = f(r) exp(-β_k (exp(-α r) - μ_k)²),  α = 5 / cutoff

    ::

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


class BesselBasis(nn.Module):
    """φ_k(r) = Σ_m M_km sinc(m r / c),  m = 1 ... R + 1,  sinc(x) = sin(π x) / (π x)

    ::

        | variable | symbol |
        |---|---|
        | mix | M [R,R+1] |
        | frequencies | m / c [R+1], 1/Å |

    Sums of neighbouring spherical Bessel functions of order 0 that vanish with their slope at the cutoff c, made
    orthogonal (Kocer, Mason & Erturk, AIP Advances 10, 015021, 2020). Without parameters.
    """

    mix: Tensor
    frequencies: Tensor

    def __init__(self, num_radial: int, cutoff: float, trainable: bool = False) -> None:
        super().__init__()
        if trainable:
            raise ValueError("trainable must be False for a BesselBasis, which has no parameters, got True")
        self.num_radial, self.cutoff = num_radial, cutoff
        self._set(torch.empty(0))

    def _set(self, like: Tensor) -> None:
        """The constants in the dtype and on the device of `like`."""
        frequencies = [k / self.cutoff for k in range(1, self.num_radial + 2)]
        for name, values in (("mix", _orthogonal_sums(self.num_radial, self.cutoff)), ("frequencies", frequencies)):
            self.register_buffer(name, torch.tensor(values, dtype=like.dtype, device=like.device), persistent=False)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> BesselBasis:
        super()._apply(fn, recurse)
        self._set(self.mix)  # float64 made of float32 would keep its rounding
        return self

    def forward(self, distance: Tensor) -> Tensor:
        return _sinc(math.pi * distance[:, None] * self.frequencies) @ self.mix.T


def _sinc(x: Tensor) -> Tensor:
    """sin(x) / x with finite derivatives of any order at 0, where those of torch.sinc beyond the first are NaN."""
    near = x.abs() < 1e-2
    safe = torch.where(near, torch.ones_like(x), x)
    square = x * x
    series = 1 - square / 6 * (1 - square / 20 * (1 - square / 42))
    return torch.where(near, series, torch.sin(safe) / safe)


def _orthogonal_sums(count: int, cutoff: float) -> list[list[float]]:
    """M [R,R+1] of `BesselBasis`, by the recurrence of Kocer et al., eqs. 9 to 12."""
    rows: list[list[float]] = []
    norm = 1.0
    for k in range(count):
        sign = -1.0 if k % 2 else 1.0
        factor = sign * math.sqrt(2.0) * math.pi / cutoff**1.5 * (k + 1) * (k + 2) / math.hypot(k + 1, k + 2)
        row = [factor if m in (k, k + 1) else 0.0 for m in range(count + 1)]
        overlap = k**2 * (k + 2) ** 2 / (4 * (k + 1) ** 4 + 1)
        previous, norm = norm, 1 - overlap / norm
        if rows:
            share = math.sqrt(overlap / previous)
            row = [(a + share * b) / math.sqrt(norm) for a, b in zip(row, rows[-1], strict=True)]
        rows.append(row)
    return rows


RADIAL_BASES: dict[str, type[ExpNormalBasis] | type[GaussianBasis] | type[BesselBasis]] = {
    "expnorm": ExpNormalBasis,
    "gauss": GaussianBasis,
    "bessel": BesselBasis,
}
