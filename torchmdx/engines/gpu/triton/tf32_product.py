"""Products with weight matrices on tensor cores, exact to float32: of one matrix, and of nine components.

A float is a number of eleven bits, which a tensor core multiplies exactly, and a remainder. Weights are divided into
these parts once, when they are packed, and the other operand in registers. Three products of such parts make one of
float32. Each step is added in float32 outside the tensor core, because sums inside it lose bits.

A tensor core cuts its sum off, towards zero, at each of its own steps of 8 (TF32) or 16 (half precision) channels.
After n of them a sum of random terms has lost on average 0.18 (n + 1) of 2⁻²³ of itself, which `restored` makes up
for, to the nearest number. Without it, errors of many products have the same sign and add up.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchmdx.engines.gpu.triton.activations import activate, slope


@dataclass(frozen=True, eq=False)
class Split:
    """A matrix [outputs,inputs], or three, in the two parts that `product` reads."""

    big: Tensor
    small: Tensor

    @classmethod
    def of(cls, matrix: Tensor) -> Split:
        # Round to the nearest float whose last thirteen bits are zero.
        bits = matrix.contiguous().view(torch.int32)
        big = ((bits + 0x1000) & ~0x1FFF).view(torch.float32)
        return cls(big, matrix - big)


# Triton's interpreter multiplies on the CPU, which cuts nothing off.
CUTS_OFF = tl.constexpr(0 if os.environ.get("TRITON_INTERPRET") == "1" else 1)


@triton.jit
def restored(total, STEPS: tl.constexpr):
    """A sum that a tensor core made in STEPS steps, times a factor: see this module's text."""
    FACTOR: tl.constexpr = 1.0 + CUTS_OFF * ((18 * (STEPS + 1) + 50) // 100) * 1.1920928955078125e-07
    return total * FACTOR


@triton.jit
def nearest(x):
    """x rounded to the nearest number of eleven bits."""
    return ((x.to(tl.uint32, bitcast=True) + 0x1000) & 0xFFFFE000).to(tl.float32, bitcast=True)


@triton.jit
def product(acc, x, W, SMALL, at):
    """acc + x w for w [columns,inner] at `at` of a split matrix."""
    w, w_rest = tl.load(W + at).T, tl.load(SMALL + at).T
    # Rounded, not cut off: the rest is then shorter by a bit, and errors have either sign.
    big = nearest(x)
    total = tl.dot(x - big, w, input_precision="tf32")
    total = tl.dot(big, w_rest, total, input_precision="tf32")
    return acc + restored(tl.dot(big, w, total, input_precision="tf32"), x.shape[1] // 8)


@triton.jit(do_not_specialize=["num_atoms"])
def multiply_parts(
    X, W, SMALL, Y, num_atoms,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Y = X W for tensors [N,9,C], W [3,C,C] one matrix for each part. A program makes one component of ROWS atoms.

    Y may be X if a program makes all COLUMNS.
    """
    component = tl.program_id(0) % 9
    block = tl.program_id(0) // 9
    if num_atoms.dtype.is_ptr():
        num_atoms = tl.load(num_atoms)
        if block // (CHANNELS // COLUMNS) * ROWS >= num_atoms:
            return
    row = (block // (CHANNELS // COLUMNS)) * ROWS + tl.arange(0, ROWS)
    n = (block % (CHANNELS // COLUMNS)) * COLUMNS + tl.arange(0, COLUMNS)
    part = (component > 0).to(tl.int32) + (component > 3).to(tl.int32)
    valid = (row < num_atoms)[:, None]
    base = row.to(tl.int64)[:, None] * (9 * CHANNELS) + component * CHANNELS
    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, CHANNELS, STEP):
        k = first + tl.arange(0, STEP)[None, :]
        x = tl.load(X + base + k, mask=valid, other=0.0)
        acc = product(acc, x, W, SMALL, part * (CHANNELS * CHANNELS) + n[:, None] * CHANNELS + k)
    if COLUMNS == CHANNELS:
        tl.debug_barrier()  # Y may be X: all of its rows have been read
    tl.store(Y + base + n[None, :], acc, mask=valid)


@triton.jit(do_not_specialize=["num_atoms"])
def multiply(
    X, W, SMALL, SIDE, Y, num_atoms,
    INNER: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
    ACTIVATION: tl.constexpr, AFTER: tl.constexpr,
):  # fmt: skip
    """Y [N,WIDTH] from X [N,INNER] and W, which is [WIDTH,INNER].

    AFTER "bias": act(X) W + SIDE; "scale": (X W) SIDE, with SIDE [WIDTH]; "slope": (X W) act'(SIDE), with SIDE of
    the shape of Y, or Y itself.
    """
    if num_atoms.dtype.is_ptr():
        num_atoms = tl.load(num_atoms)
        if tl.program_id(0) * ROWS >= num_atoms:
            return
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    valid = (row < num_atoms)[:, None]
    base = row.to(tl.int64)[:, None] * INNER
    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, INNER, STEP):
        k = first + tl.arange(0, STEP)[None, :]
        x = tl.load(X + base + k, mask=valid, other=0.0)
        if AFTER == "bias":
            x = activate(x, ACTIVATION)
        acc = product(acc, x, W, SMALL, n[:, None] * INNER + k)
    at = row.to(tl.int64)[:, None] * WIDTH + n[None, :]
    if AFTER == "bias":
        acc += tl.load(SIDE + n)[None, :]
    elif AFTER == "scale":
        acc *= tl.load(SIDE + n)[None, :]
    else:
        tl.static_assert(AFTER == "slope")
        acc *= slope(tl.load(SIDE + at, mask=valid, other=0.0), ACTIVATION)
    tl.store(Y + at, acc, mask=valid)
