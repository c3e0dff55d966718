"""Two maps of TensorNet2's filters in one kernel: from z₁ to z₃, with z₂ in registers. See edge_mlp.py.

A program keeps z₂ of its rows in registers as half-precision parts, and reads the matrix of the second map in blocks
of outputs. Reading the matrices from the second-level cache limits the speed: 0.5 MB per program.
"""

import triton
import triton.language as tl

from torchmdx.engines.gpu.triton.activations import activate
from torchmdx.engines.gpu.triton.fp16_product import parts_product, row_parts


@triton.jit(do_not_specialize=["num_atoms"])
def two_maps(
    Z1, MIDDLE, MIDDLE_SMALL, MIDDLE_BIAS, LAST, LAST_SMALL, LAST_BIAS, Z2, Z3, ROW_PTR, num_atoms, middle_unit,
    last_unit, CHANNELS: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STAGES: tl.constexpr, ACTIVATION: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Z3 [rows,3C] of Z1, whose rows are STRIDE apart and may lie in Z3's; Z2 [rows,2C] as well if KEEP."""
    first = tl.program_id(0) * ROWS
    last = num_atoms + tl.load(ROW_PTR + num_atoms)
    if first < last:
        row = first + tl.arange(0, ROWS)
        valid = (row < last)[:, None]
        c = tl.arange(0, CHANNELS)
        z = tl.load(Z1 + row.to(tl.int64)[:, None] * STRIDE + c[None, :], mask=valid, other=0.0)
        big, small, unit = row_parts(activate(z, ACTIVATION))
        unit *= middle_unit
        out = Z2 + row.to(tl.int64)[:, None] * (2 * CHANNELS) + c[None, :]
        a, a_small, a_unit = _half(
            big, small, unit, MIDDLE, MIDDLE_SMALL, MIDDLE_BIAS, out, valid, CHANNELS, ACTIVATION, KEEP
        )
        b, b_small, b_unit = _half(
            big, small, unit, MIDDLE + CHANNELS * CHANNELS, MIDDLE_SMALL + CHANNELS * CHANNELS, MIDDLE_BIAS + CHANNELS,
            out + CHANNELS, valid, CHANNELS, ACTIVATION, KEEP,
        )  # fmt: skip
        a_unit *= last_unit
        b_unit *= last_unit
        for start in tl.range(0, 3 * CHANNELS, COLUMNS, num_stages=STAGES):
            n = start + tl.arange(0, COLUMNS)
            at = n[:, None] * (2 * CHANNELS) + c[None, :]
            y = parts_product(a, a_small, tl.load(LAST + at).T, tl.load(LAST_SMALL + at).T) * a_unit[:, None]
            at += CHANNELS
            y += parts_product(b, b_small, tl.load(LAST + at).T, tl.load(LAST_SMALL + at).T) * b_unit[:, None]
            y += tl.load(LAST_BIAS + n)[None, :]
            tl.store(Z3 + row.to(tl.int64)[:, None] * (3 * CHANNELS) + n[None, :], y, mask=valid)


@triton.jit
def _half(
    big, small, unit, MIDDLE, MIDDLE_SMALL, BIAS, OUT, valid,
    CHANNELS: tl.constexpr, ACTIVATION: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Parts of the activated C columns of z₂ that begin at MIDDLE."""
    c = tl.arange(0, CHANNELS)
    at = c[:, None] * CHANNELS + c[None, :]
    z = parts_product(big, small, tl.load(MIDDLE + at).T, tl.load(MIDDLE_SMALL + at).T) * unit[:, None]
    z += tl.load(BIAS + c)[None, :]
    if KEEP:
        tl.store(OUT, z, mask=valid)
    return row_parts(activate(z, ACTIVATION))
