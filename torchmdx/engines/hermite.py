"""Polynomials with given values and slopes at nodes of an interval."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor


@dataclass(frozen=True)
class Polynomial:
    """nodes: where it has the exact value and slope, in [0,1]. origin: of t, whose powers it has."""

    nodes: tuple[float, ...]
    origin: float

    @property
    def degree(self) -> int:
        return 2 * len(self.nodes) - 1

    @property
    def solve(self) -> Tensor:
        """Coefficients from value and slope at each node, float64, from exact fractions: floats would lose 1e-9."""
        size = self.degree + 1
        rows = []
        for t in (Fraction(node) - Fraction(self.origin) for node in self.nodes):
            rows.append([t**p for p in range(size)])
            rows.append([p * t ** max(p - 1, 0) for p in range(size)])
        matrix = [[*row, *(Fraction(int(i == k)) for k in range(size))] for i, row in enumerate(rows)]
        for c in range(size):
            pivot = next(i for i in range(c, size) if matrix[i][c])
            matrix[c], matrix[pivot] = matrix[pivot], matrix[c]
            matrix[c] = [x / matrix[c][c] for x in matrix[c]]
            for i in range(size):
                if i != c:
                    matrix[i] = [x - matrix[i][c] * y for x, y in zip(matrix[i], matrix[c], strict=True)]
        return torch.tensor([[float(x) for x in row[size:]] for row in matrix], dtype=torch.float64, device="cpu")


FIFTH = Polynomial((0.0, 0.5, 1.0), 0.0)
NINTH = Polynomial((0.0, 0.25, 0.5, 0.75, 1.0), 0.5)
