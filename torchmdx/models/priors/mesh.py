"""Smooth particle mesh Ewald: the sum over the reciprocal lattice by Fourier transforms of charges on a grid.

A charge is spread with a B-spline M_p of order p along each axis (Essmann et al., J. Chem. Phys. 103, 8577, 1995):

::

    S(k) ≈ b₁(n₁) b₂(n₂) b₃(n₃) Σ_g exp(2πi Σ_x n_x g_x / K_x) Σ_i q_i Π_x M_p(u_ix - g_x),  u_ix = K_x f_ix

::

  | variable | symbol |
  |---|---|
  | fractional coordinates, points of the grid along an axis | f, K |
  | index of a vector of the reciprocal lattice | n, less than K / 2 |
  | amplitude of a wave on the grid | b(n) = 1 / |Σ_j M_p(j + 1) exp(2πi n j / K)|, j = 0 .. p - 2 |
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchmdx.models.priors.splitting import DENSITY, Splitting

CPU = torch.device("cpu")
ORDERS = (4, 5, 6, 7, 8)
FACTORS = (2, 3, 5, 7)  # of the points along an axis, for fast transforms
MULTIPLE = 4  # of which the points along an axis are one: tiles of the kernels
POINT_COST = 10.0  # work for a point of the grid, in that for an atom and a point it is spread to
MARGIN = 2.0  # by which the estimated error may be too small: charges are not independent of each other
NODES = 64  # of the integrals in an estimated error, along each of two directions


@dataclass(frozen=True)
class Mesh:
    """B-splines of an order, on a grid whose points are at most `spacing` Å apart along every lattice vector."""

    order: int
    spacing: float

    @classmethod
    @functools.lru_cache(maxsize=256)
    def of(cls, splitting: Splitting) -> Mesh:
        """The cheapest mesh whose error is at most that of the sum over pairs."""
        allowed = splitting.accuracy / math.sqrt(2) / MARGIN
        found = [cls(order, _spacing(order, splitting.alpha, allowed)) for order in ORDERS]
        return min(found, key=lambda mesh: mesh.order**3 + POINT_COST / (DENSITY * mesh.spacing**3))

    def shape(self, lattices: Tensor) -> tuple[int, int, int]:
        """Points along each axis, for the largest of some cells [S,3,3]. Reads the device."""
        lengths = torch.linalg.vector_norm(lattices, dim=-1).nan_to_num().amax(0).tolist()
        fewest = [max(math.ceil(length / self.spacing), 2 * self.order) for length in lengths]
        a, b, c = (_good(number) for number in fewest)
        return a, b, c


def indices_of(shape: tuple[int, int, int], device: torch.device) -> Tensor:
    """Vectors [K,3] float64, in units of the reciprocal lattice, in the order of a real transform of this shape."""
    options = {"dtype": torch.float64, "device": device}
    axes = [torch.fft.fftfreq(n, 1 / n, **options) for n in shape[:2]]
    return torch.cartesian_prod(*axes, torch.fft.rfftfreq(shape[2], 1 / shape[2], **options)).round()


def splines(order: int, fraction: Tensor) -> Tensor:
    """M_p(w + d) for d = 0 .. p - 1 along a new last axis, w in [0, 1) of any shape. Differentiable."""
    found = [fraction, 1 - fraction]
    for p in range(3, order + 1):
        # M_p(u) = [u M_{p-1}(u) + (p - u) M_{p-1}(u - 1)] / (p - 1)
        inner = [(fraction + d) * found[d] + (p - d - fraction) * found[d - 1] for d in range(1, p - 1)]
        ends = fraction * found[0], (1 - fraction) * found[-1]
        found = [each / (p - 1) for each in (ends[0], *inner, ends[1])]
    return torch.stack(found, -1)


def spline_slopes(order: int, fraction: Tensor) -> Tensor:
    """Derivatives of `splines`: M_p'(u) = M_{p-1}(u) - M_{p-1}(u - 1)."""
    below = splines(order - 1, fraction)
    return torch.nn.functional.pad(below, (0, 1)) - torch.nn.functional.pad(below, (1, 0))


def polynomials(order: int) -> Tensor:
    """Coefficients [2,p,p] float64 of wⁿ in `splines` and `spline_slopes`."""
    found = torch.zeros(2, order, order, dtype=torch.float64, device=CPU)
    for d in range(order):
        # M_p(w + d) = Σ_k (-1)^k C(p,k) (w + d - k)^(p-1) / (p - 1)!, over k up to d
        for k in range(d + 1):
            for n in range(order):
                term = math.comb(order, k) * math.comb(order - 1, n) * (d - k) ** (order - 1 - n)
                found[0, d, n] += (-1) ** k * term / math.factorial(order - 1)
    found[1, :, :-1] = found[0, :, 1:] * torch.arange(1, order, dtype=torch.float64, device=CPU)
    return found


def wave_amplitudes(order: int, points: int, device: torch.device) -> Tensor:
    """b(n)² [K] float64 in the order of a transform; zero for the wave at the end, whose sign is not known."""
    knots = splines(order, torch.zeros((), dtype=torch.float64, device=device))[1:]
    numbers = torch.arange(points, dtype=torch.float64, device=device)
    phases = 2 * math.pi / points * numbers[:, None] * torch.arange(order - 1, dtype=torch.float64, device=device)
    square = (torch.cos(phases) @ knots) ** 2 + (torch.sin(phases) @ knots) ** 2
    ends = numbers * 2 == points
    return torch.where(ends, 0.0, 1 / torch.where(ends, 1.0, square))


@functools.lru_cache(maxsize=1024)
def _good(fewest: int) -> int:
    """The smallest number of points from `fewest` on with small factors alone."""
    number = MULTIPLE * math.ceil(fewest / MULTIPLE)
    while True:
        rest = number
        for factor in FACTORS:
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return number
        number += MULTIPLE


def _spacing(order: int, alpha: float, allowed: float) -> float:
    """The largest spacing, Å, whose estimated error is allowed."""
    low, high = 0.02 / alpha, 4.0 / alpha
    for _ in range(16):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if relative_error(order, middle, alpha) <= allowed else (low, middle)
    return low


def relative_error(order: int, spacing: float, alpha: float) -> float:
    """Root mean square error of forces, relative to the forces of neighbours as in `Splitting.of`, for a large cell.

    A wave k appears on the grid as k' = k + 2π m / h, m = ±1, ±2, along each axis, with the amplitude c = (k / k')^p.
    The error squared in the force on a unit charge is the sum of A(k)² [Σ_m c² (k² + k'²) + 4 k² (Σ_m c)²] over the
    waves of the grid, and of A(k)² k² over those beyond.
    """
    last, reach = math.pi / spacing, 9 * alpha
    nodes = (torch.arange(NODES, dtype=torch.float64, device=CPU) + 0.5) / NODES
    across = (reach * nodes)[None, :]
    total = 0.0
    for first, width in ((0.0, last), (last, reach)):
        along = first + width * nodes[:, None]
        square = along**2 + across**2
        seen = square
        if not first:
            aliases = along + 2 * last * torch.tensor([-2.0, -1.0, 1.0, 2.0], dtype=torch.float64, device=CPU)
            c = (along / aliases) ** order
            seen = (c**2 * aliases**2).sum(-1, keepdim=True) + (c**2).sum(-1, keepdim=True) * (square + across**2)
            seen = seen + 4 * square * c.sum(-1, keepdim=True) ** 2
        area = 2 * (width / NODES) * (reach / NODES) * 2 * math.pi * across
        total += float((area * seen * torch.exp(-square / (2 * alpha**2)) / square**2).sum())
    return math.sqrt(3 * total * 2 / math.pi) * DENSITY ** (-1 / 6)
