"""Backward pass from the gradient in z₃ to that in z₁, in half-precision parts. See edge_mlp.py, fp16_product.py.

`messages_gradient` leaves the gradient in z₃ as parts, a pair for each slice of channels; `first_back` computes
from them the parts of the gradient in z₂, a pair for each half of its columns, and `second_back` the gradient in z₁.
Tensor cores then read their operands from memory without a conversion.

| buffer | shape | holds |
|---|---|---|
| G3 | [rows,3,slices,2,SLICE], half | parts of the gradient in z₃ |
| UNITS | [rows,3,slices] | their powers of two |
| G2 | [rows,2,2,C], half | parts of the gradient in z₂ |
| UNITS2 | [rows,2] | their powers of two |
"""

import triton
import triton.language as tl

from torchmdx.engines.gpu.triton.activations import activate, slope
from torchmdx.engines.gpu.triton.fp16_product import parts_product, row_parts


@triton.jit(do_not_specialize=["num_atoms", "start", "rows"])
def first_back(
    G3, UNITS, LAST, LAST_SMALL, Z1, MIDDLE, MIDDLE_SMALL, MIDDLE_BIAS, G2, UNITS2, ROW_PTR, num_atoms, start, rows,
    middle_unit, last_unit, CHANNELS: tl.constexpr, SLICE: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
    STAGES: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """G2 for one half of the columns of z₂, which are evaluated again from Z1.

    LAST is [3C,2C], MIDDLE [2C,C]. `rows` rows of those of atoms and edges, from row `start` on.
    """
    half = tl.program_id(0) % 2
    first = (tl.program_id(0) // 2) * ROWS
    last = tl.minimum(num_atoms + tl.load(ROW_PTR + num_atoms) - start, rows)
    if first < last:
        row = first + tl.arange(0, ROWS)
        valid = (row < last)[:, None]
        row = row.to(tl.int64)
        c = tl.arange(0, CHANNELS)
        k = tl.arange(0, STEP)
        BLOCKS: tl.constexpr = SLICE // STEP
        acc = tl.zeros((ROWS, CHANNELS), tl.float32)
        for b in tl.range(0, 3 * CHANNELS // STEP, num_stages=STAGES):
            at = G3 + row[:, None] * (6 * CHANNELS) + ((b // BLOCKS) * (2 * SLICE) + (b % BLOCKS) * STEP) + k[None, :]
            big = tl.load(at, mask=valid, other=0.0)
            small = tl.load(at + SLICE, mask=valid, other=0.0)
            unit = tl.load(UNITS + row * (3 * CHANNELS // SLICE) + b // BLOCKS, mask=row < last, other=0.0)
            w = (b * STEP + k)[:, None] * (2 * CHANNELS) + half * CHANNELS + c[None, :]
            acc += parts_product(big, small, tl.load(LAST + w), tl.load(LAST_SMALL + w)) * (unit * last_unit)[:, None]
        x = tl.load(Z1 + row[:, None] * CHANNELS + c[None, :], mask=valid, other=0.0)
        a, a_small, a_unit = row_parts(activate(x, ACTIVATION))
        w = (half * CHANNELS + c)[:, None] * CHANNELS + c[None, :]
        z = parts_product(a, a_small, tl.load(MIDDLE + w).T, tl.load(MIDDLE_SMALL + w).T)
        z = z * (a_unit * middle_unit)[:, None] + tl.load(MIDDLE_BIAS + half * CHANNELS + c)[None, :]
        big2, small2, unit2 = row_parts(acc * slope(z, ACTIVATION))
        out = G2 + row[:, None] * (4 * CHANNELS) + half * (2 * CHANNELS) + c[None, :]
        tl.store(out, big2, mask=valid)
        tl.store(out + CHANNELS, small2, mask=valid)
        tl.store(UNITS2 + row * 2 + half, unit2, mask=row < last)


@triton.jit(do_not_specialize=["num_atoms", "start", "rows"])
def second_back(
    G2, UNITS2, MIDDLE, MIDDLE_SMALL, Z1, ROW_PTR, num_atoms, start, rows, middle_unit,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Overwrites Z1 with its gradient."""
    first = tl.program_id(0) * ROWS
    last = tl.minimum(num_atoms + tl.load(ROW_PTR + num_atoms) - start, rows)
    if first < last:
        row = first + tl.arange(0, ROWS)
        valid = (row < last)[:, None]
        row = row.to(tl.int64)
        c = tl.arange(0, CHANNELS)
        k = tl.arange(0, STEP)
        BLOCKS: tl.constexpr = CHANNELS // STEP
        acc = tl.zeros((ROWS, CHANNELS), tl.float32)
        for b in tl.range(0, 2 * BLOCKS, num_stages=STAGES):
            at = (
                G2 + row[:, None] * (4 * CHANNELS) + ((b // BLOCKS) * (2 * CHANNELS) + (b % BLOCKS) * STEP) + k[None, :]
            )
            big = tl.load(at, mask=valid, other=0.0)
            small = tl.load(at + CHANNELS, mask=valid, other=0.0)
            unit = tl.load(UNITS2 + row * 2 + b // BLOCKS, mask=row < last, other=0.0) * middle_unit
            w = (b * STEP + k)[:, None] * CHANNELS + c[None, :]
            acc += parts_product(big, small, tl.load(MIDDLE + w), tl.load(MIDDLE_SMALL + w)) * unit[:, None]
        at = Z1 + row[:, None] * CHANNELS + c[None, :]
        tl.store(at, acc * slope(tl.load(at, mask=valid, other=0.0), ACTIVATION), mask=valid)
