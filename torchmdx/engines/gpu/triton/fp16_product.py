"""Products with weight matrices on tensor cores in half precision, exact to float32.

A row of floats, scaled by a power of two so that its largest is about 2¹⁴, is the sum of two half-precision numbers of
eleven bits each: the rounded value and the remainder. A matrix has one power of two. Three products of
such parts make one of float32, at twice the speed of TF32 (tf32_product.py) if rows stay in the registers that
converted them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from torchmdx.engines.gpu.triton.tf32_product import restored

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


@triton.jit
def row_unit(largest):
    """(scale, 1 / scale), the power of two that brings the largest absolute value of a row to about 2¹⁴."""
    exponent = tl.minimum(tl.maximum(largest.to(tl.int32, bitcast=True) >> 23, 27), 250)  # with that of 1 being 127
    return ((268 - exponent) << 23).to(tl.float32, bitcast=True), ((exponent - 14) << 23).to(tl.float32, bitcast=True)


@triton.jit
def parts_product(big, small, w, w_small):
    """(big + small) (w + w_small) without the product of the two small ones, which is below float32's last bit."""
    total = tl.dot(small, w)
    total = tl.dot(big, w_small, total)
    return restored(tl.dot(big, w, total), big.shape[1] // 16)
