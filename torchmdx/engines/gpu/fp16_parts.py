"""Matrices in half precision for products on tensor cores that are exact to float32, in kernels of CUDA C++.

A row of floats, scaled by a power of two so that its largest is about 2¹⁴, is the sum of two half-precision numbers of
eleven bits each: the rounded value and the remainder. A matrix has one power of two. Three products of such parts make
one of float32, at twice the speed of TF32 (triton/tf32_product.py) if rows stay in the registers that converted them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

LARGEST = 14  # exponent of the largest number of a row; that of half precision is 15


@dataclass(frozen=True, eq=False)
class HalfParts:
    """A matrix [outputs,inputs] as two matrices in half precision: unit · (big + small)."""

    big: Tensor
    small: Tensor
    unit: float

    @classmethod
    def of(cls, matrix: Tensor) -> HalfParts:
        largest = float(matrix.abs().amax())
        known = math.isfinite(largest) and largest > 0
        scale = 2.0 ** min(100, LARGEST - 1 - math.floor(math.log2(largest))) if known else 1.0
        scaled = matrix * scale
        big = scaled.half()
        return cls(big.contiguous(), (scaled - big.float()).half().contiguous(), 1.0 / scale)
