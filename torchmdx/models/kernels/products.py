"""Products with weight matrices inside kernels: of one matrix, and of nine components with a matrix for each part."""

import triton
import triton.language as tl

from torchmdx.models.kernels.activations import activate
from torchmdx.models.kernels.components import load9


@triton.jit
def zeros9(rows: tl.constexpr, columns: tl.constexpr):
    """Nine blocks of zeros."""
    z = tl.zeros((rows, columns), tl.float32)
    return (z, z, z, z, z, z, z, z, z)


@triton.jit
def mix9(acc, x, w0, w1, w2, precision: tl.constexpr):
    """acc + x W, one matrix for each part: nine products of blocks."""
    return (
        tl.dot(x[0], w0, acc[0], input_precision=precision),
        tl.dot(x[1], w1, acc[1], input_precision=precision),
        tl.dot(x[2], w1, acc[2], input_precision=precision),
        tl.dot(x[3], w1, acc[3], input_precision=precision),
        tl.dot(x[4], w2, acc[4], input_precision=precision),
        tl.dot(x[5], w2, acc[5], input_precision=precision),
        tl.dot(x[6], w2, acc[6], input_precision=precision),
        tl.dot(x[7], w2, acc[7], input_precision=precision),
        tl.dot(x[8], w2, acc[8], input_precision=precision),
    )


@triton.jit
def _dot_groups(x, w, precision: tl.constexpr):
    """Σ_g x_g w_g for x [groups,rows,k] and w [groups,k,columns]: warps share the sum, not the columns."""
    return tl.sum(tl.dot(x, w, input_precision=precision), 0)


@triton.jit
def multiply_parts(
    X,
    W,
    SCRATCH,
    row,
    n,
    valid,
    CHANNELS: tl.constexpr,
    STEP: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """X W for atoms `row` and columns n [1,columns]; W [3,C,C], one matrix for each part, rows are inputs.

    SPLIT 1: every warp makes some columns of all nine components. Otherwise warps share the components, one product of
    [16,rows,k] and [16,k,columns] blocks: a shorter chain, for few atoms. The result then goes through SCRATCH [N,9,C],
    because its components are in different warps.
    """
    base = row.to(tl.int64)[:, None] * (9 * CHANNELS)
    if SPLIT == 1:
        acc = zeros9(row.shape[0], n.shape[1])
        for first in range(0, CHANNELS, STEP):
            k = first + tl.arange(0, STEP)
            x = load9(X + base + k[None, :], valid, CHANNELS)
            w = W + k[:, None] * CHANNELS + n
            w0, w1, w2 = tl.load(w), tl.load(w + CHANNELS * CHANNELS), tl.load(w + 2 * CHANNELS * CHANNELS)
            acc = mix9(acc, x, w0, w1, w2, PRECISION)
    else:
        component = tl.arange(0, 16)[:, None, None]
        real = component < 9
        part = (component > 0).to(tl.int32) + (component > 3).to(tl.int32)
        total = tl.zeros((16, row.shape[0], n.shape[1]), tl.float32)
        for first in range(0, CHANNELS, STEP):
            k = first + tl.arange(0, STEP)
            x = tl.load(
                X + base[None, :, :] + component * CHANNELS + k[None, None, :],
                mask=valid[None, :, :] & real,
                other=0.0,
            )
            w = W + part * (CHANNELS * CHANNELS) + k[None, :, None] * CHANNELS + n[None, :, :]
            total = tl.dot(x, tl.load(w, mask=real, other=0.0), total, input_precision=PRECISION)
        at = SCRATCH + base + n
        tl.store(at[None, :, :] + component * CHANNELS, total, mask=valid[None, :, :] & real)
        # What other threads of this program stored is read next.
        tl.debug_barrier()
        acc = load9(at, valid, CHANNELS)
    return acc


@triton.jit
def multiply(
    base,
    W,
    n,
    valid,
    INNER: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """act(X) W: rows of X [.,INNER] start at `base` [rows,1], W is [INNER,WIDTH]."""
    if SPLIT == 1:
        acc = tl.zeros((base.shape[0], n.shape[1]), tl.float32)
        for first in range(0, INNER, STEP):
            k = first + tl.arange(0, STEP)
            x = tl.load(base + k[None, :], mask=valid, other=0.0)
            x = activate(x, ACTIVATION)
            acc = tl.dot(x, tl.load(W + k[:, None] * WIDTH + n), acc, input_precision=PRECISION)
    else:
        k = tl.arange(0, SPLIT)[:, None] * (INNER // SPLIT) + tl.arange(0, INNER // SPLIT)[None, :]
        x = tl.load(base[None, :, :] + k[:, None, :], mask=valid[None, :, :], other=0.0)
        x = activate(x, ACTIVATION)
        acc = _dot_groups(x, tl.load(W + k[:, :, None] * WIDTH + n[None, :, :]), PRECISION)
    return acc
