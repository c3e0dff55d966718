"""Where the knots of a table of filters are: uniform in a stretched distance.

::

    x(r) = n · [ w · (1 - r / c) + (1 - w) · (exp(-α r) - exp(-α c)) / (1 - exp(-α c)) ],   α = d / c

::

    | variable | symbol |
    |---|---|
    | num_intervals | n |
    | cutoff | c, Å; x(c) = 0 and x(0) = n |
    | uniform | w: 1 spaces knots evenly |
    | decay | d: of 5, with w = 0, puts knots where exponential-normal bases are narrow; of more, at shorter distances |

Two rules choose n, w and d. Tables in float32 are read by kernels whose speed depends on the intervals that edges fall
into, most of them at long distances. Tables in float64 take the least error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

MOST_INTERVALS = 8192
Ranges = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Stretch:
    """x(r) of this module's text: from distance to position in the table."""

    num_intervals: int
    cutoff: float
    uniform: float
    decay: float = 5.0

    @property
    def alpha(self) -> float:
        return self.decay / self.cutoff

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """(p, q, s) of x(r) = p + q r + s exp(-α r)."""
        end = math.exp(-self.decay)
        s = self.num_intervals * (1 - self.uniform) / (1 - end)
        return self.num_intervals * self.uniform - s * end, -self.num_intervals * self.uniform / self.cutoff, s

    def __call__(self, distance: Tensor) -> Tensor:
        p, q, s = self.coefficients
        return p + q * distance + s * torch.exp(-self.alpha * distance)

    def slope(self, distance: Tensor) -> Tensor:
        """dx/dr, negative."""
        _, q, s = self.coefficients
        return q - self.alpha * s * torch.exp(-self.alpha * distance)

    def inverse(self, position: Tensor) -> Tensor:
        """r(x) by bisection, exact to rounding: x falls with r."""
        low, high = torch.zeros_like(position), torch.full_like(position, self.cutoff)
        for _ in range(60):
            middle = (low + high) / 2
            beyond = self(middle) < position
            low, high = torch.where(beyond, low, middle), torch.where(beyond, middle, high)
        return (low + high) / 2

    def beyond(self, distance: float) -> float:
        """The number of intervals at distances beyond this one."""
        p, q, s = self.coefficients
        return p + q * distance + s * math.exp(-self.alpha * distance)


@dataclass(frozen=True)
class Spacing:
    """How knots are chosen. Small tables, one for each of `shapes`, are compared by `cost`.

    Attributes:
        shapes: Pairs (w, d).
        fewest: The number of intervals that is tried first.
        cost: Of a stretch whose table has an error of `excess` times the bound, and of the degree of its polynomials.
        ranges: Pairs of a distance, of the cutoff, and a factor: errors at longer distances are compared with the
            largest filters there, and the factor times the bound is allowed.
    """

    shapes: tuple[tuple[float, float], ...]
    fewest: int
    cost: Callable[[Stretch, float, int], float]
    ranges: Ranges = ((0.0, 1.0),)

    @property
    def facts(self) -> tuple[object, ...]:
        """All of it, with the function by name."""
        return self.shapes, self.fewest, self.cost.__name__, self.ranges

    def first(self, cutoff: float) -> list[Stretch]:
        """The stretches that are tried first."""
        return [Stretch(self.fewest, cutoff, uniform, decay) for uniform, decay in self.shapes]

    def finer(self, stretch: Stretch, excess: float, degree: int) -> Stretch:
        """With as many intervals as the bound takes: errors are proportional to their power of minus the degree."""
        growth = 1.05 * excess ** (1 / degree)
        intervals = 8 * math.ceil(stretch.num_intervals * growth / 8)
        return replace(stretch, num_intervals=min(MOST_INTERVALS, intervals))


def traffic(stretch: Stretch, excess: float, degree: int) -> float:
    """Intervals that edges read, of as many as the bound takes: most edges are longer than half of the cutoff."""
    read = stretch.beyond(stretch.cutoff / 2) + 0.05 * stretch.num_intervals
    return read * max(1.0, excess ** (1 / degree))


def least_error(stretch: Stretch, excess: float, degree: int) -> float:
    """The error itself."""
    return excess


# Filters may be many times larger where atoms never come, below 0.16 of the cutoff, than where they do, and there than
# at the distances of most edges.
FOR_FLOAT32 = Spacing(
    ((0.1, 7.0), (0.2, 7.0), (0.3, 7.0), (1.0, 5.0)), 192, traffic, ranges=((0.0, 1.0), (0.16, 1.0), (0.5, 10.0))
)
FOR_FLOAT64 = Spacing(tuple((w, 5.0) for w in (0.0, 0.1, 0.3, 1.0)), 64, least_error)
