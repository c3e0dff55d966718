"""From the sum over neighbours A to the first tensors X = mix(A) · gate(norm(A)), and back.

| buffer | shape | holds |
|---|---|---|
| A, MIXED, X | [N,9,C] | the sum, mix(A), and their gated product |
| HIDDEN | [N,H] | before the first activation of the gate; H is 2C; on the way back its gradient |
| GATE | [N,3,C] | before its second activation; on the way back its gradient |

Channels are padded to a power of two with weights of zero; WIDTH is how many of them are real.
"""

import triton
import triton.language as tl

from torchmdx.models.kernels.activations import activate, slope
from torchmdx.models.kernels.components import (
    add9,
    load9,
    part_norms_gradient,
    scale_parts,
    squared_norm,
    store9,
)
from torchmdx.models.kernels.interaction import store_output
from torchmdx.models.kernels.products import multiply, multiply_parts


@triton.jit
def statistics(x, width, real, epsilon):
    """Mean and 1 / deviation over the `width` real columns of rows x."""
    mean = tl.sum(x, 1)[:, None] / width
    centred = tl.where(real, x - mean, 0.0)
    return mean, 1.0 / tl.sqrt_rn(tl.sum(centred * centred, 1)[:, None] / width + epsilon)


@triton.jit(do_not_specialize=["num_atoms"])
def gate_hidden(
    A,
    SCALE,
    OFFSET,
    W,
    BIAS,
    HIDDEN,
    num_atoms,
    epsilon,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    HIDDEN_WIDTH: tl.constexpr,
    ATOMS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """HIDDEN = LayerNorm(|A|²) W + b, W [C,H]. First the statistics, then the product, STEP channels at a time."""
    row = tl.program_id(0) * ATOMS + tl.arange(0, ATOMS)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    valid = (row < num_atoms)[:, None]
    base = A + row.to(tl.int64)[:, None] * (9 * CHANNELS)
    c = tl.arange(0, CHANNELS)[None, :]
    norm = squared_norm(load9(base + c, valid, CHANNELS))
    mean, inverse = statistics(norm, WIDTH, c < WIDTH, epsilon)
    acc = tl.zeros((ATOMS, COLUMNS), tl.float32)
    for first in range(0, CHANNELS, STEP):
        k = first + tl.arange(0, STEP)
        here = squared_norm(load9(base + k[None, :], valid, CHANNELS))
        x = (here - mean) * inverse * tl.load(SCALE + k)[None, :] + tl.load(OFFSET + k)[None, :]
        w = tl.load(W + k[:, None] * HIDDEN_WIDTH + n[None, :])
        acc = tl.dot(x, w, acc, input_precision=PRECISION)
    acc += tl.load(BIAS + n)[None, :]
    tl.store(HIDDEN + row.to(tl.int64)[:, None] * HIDDEN_WIDTH + n[None, :], acc, mask=valid)


@triton.jit(do_not_specialize=["num_atoms"])
def gate(
    HIDDEN,
    W,
    BIAS,
    GATE,
    num_atoms,
    CHANNELS: tl.constexpr,
    HIDDEN_WIDTH: tl.constexpr,
    ATOMS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """GATE = act(HIDDEN) W + b, W [H,3C]."""
    row = tl.program_id(0) * ATOMS + tl.arange(0, ATOMS)
    n = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    valid = (row < num_atoms)[:, None]
    h = HIDDEN + row.to(tl.int64)[:, None] * HIDDEN_WIDTH
    g = multiply(h, W, n, valid, HIDDEN_WIDTH, 3 * CHANNELS, STEP, SPLIT, PRECISION, ACTIVATION)
    tl.store(GATE + row.to(tl.int64)[:, None] * (3 * CHANNELS) + n, g + tl.load(BIAS + n), mask=valid)


@triton.jit(do_not_specialize=["num_atoms"])
def mix_and_gate(
    A,
    MIX,
    GATE,
    MIXED,
    X,
    INVERSE,
    SCRATCH,
    num_atoms,
    CHANNELS: tl.constexpr,
    ATOMS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
    ACTIVATION: tl.constexpr,
    KEEP: tl.constexpr,
    LAST: tl.constexpr,
):
    """MIXED = A MIX, stored if KEEP, MIX [3,C,C]; X = MIXED act(GATE)."""
    row = tl.program_id(0) * ATOMS + tl.arange(0, ATOMS)
    n = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    valid = (row < num_atoms)[:, None]
    r = row.to(tl.int64)[:, None]
    mixed = multiply_parts(A, MIX, SCRATCH, row, n, valid, CHANNELS, STEP, SPLIT, PRECISION)
    if KEEP:
        store9(MIXED + r * (9 * CHANNELS) + n, mixed, valid, CHANNELS)
    at = GATE + r * (3 * CHANNELS) + n
    g0 = activate(tl.load(at, mask=valid, other=0.0), ACTIVATION)
    g1 = activate(tl.load(at + CHANNELS, mask=valid, other=0.0), ACTIVATION)
    g2 = activate(tl.load(at + 2 * CHANNELS, mask=valid, other=0.0), ACTIVATION)
    store_output(X, INVERSE, scale_parts(mixed, g0, g1, g2), row, n, valid, CHANNELS, LAST)


@triton.jit(do_not_specialize=["num_atoms"])
def gate_hidden_gradient(
    GATE,
    HIDDEN,
    W,
    num_atoms,
    CHANNELS: tl.constexpr,
    HIDDEN_WIDTH: tl.constexpr,
    ATOMS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """HIDDEN becomes its gradient, from that in GATE: (GATE W) act'(HIDDEN), W [3,C,H] here."""
    row = tl.program_id(0) * ATOMS + tl.arange(0, ATOMS)
    n = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    valid = (row < num_atoms)[:, None]
    r = row.to(tl.int64)[:, None]
    at, w = GATE + r * (3 * CHANNELS), W
    g = multiply(at, w, n, valid, CHANNELS, HIDDEN_WIDTH, STEP, SPLIT, PRECISION, "none")
    w += CHANNELS * HIDDEN_WIDTH
    g += multiply(at + CHANNELS, w, n, valid, CHANNELS, HIDDEN_WIDTH, STEP, SPLIT, PRECISION, "none")
    w += CHANNELS * HIDDEN_WIDTH
    g += multiply(at + 2 * CHANNELS, w, n, valid, CHANNELS, HIDDEN_WIDTH, STEP, SPLIT, PRECISION, "none")
    at = HIDDEN + r * HIDDEN_WIDTH + n
    tl.store(at, g * slope(tl.load(at, mask=valid, other=0.0), ACTIVATION), mask=valid)


@triton.jit(do_not_specialize=["num_atoms"])
def gate_norm_gradient(
    GHIDDEN,
    W,
    SCALE,
    GNORM,
    num_atoms,
    CHANNELS: tl.constexpr,
    HIDDEN_WIDTH: tl.constexpr,
    ATOMS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """GNORM [N,C], the gradient in the standardised |A|²: (GHIDDEN W) · scale, W [H,C] here."""
    row = tl.program_id(0) * ATOMS + tl.arange(0, ATOMS)
    n = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    valid = (row < num_atoms)[:, None]
    r = row.to(tl.int64)[:, None]
    g = multiply(GHIDDEN + r * HIDDEN_WIDTH, W, n, valid, HIDDEN_WIDTH, CHANNELS, STEP, SPLIT, PRECISION, "none")
    tl.store(GNORM + r * CHANNELS + n, g * tl.load(SCALE + n), mask=valid)


@triton.jit(do_not_specialize=["num_atoms"])
def surroundings_mix_gradient(
    G,
    A,
    GNORM,
    MIX,
    GA,
    SCRATCH,
    num_atoms,
    epsilon,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    ATOMS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gradient of A: of mix(A), from the gradient G in MIXED, and of the LayerNorm of |A|², from GNORM. MIX [3,C,C]."""
    row = tl.program_id(0) * ATOMS + tl.arange(0, ATOMS)
    n = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    c = tl.arange(0, CHANNELS)[None, :]
    valid = (row < num_atoms)[:, None]
    r = row.to(tl.int64)[:, None]
    # The gradient of a LayerNorm takes two means over all channels.
    norm = squared_norm(load9(A + r * (9 * CHANNELS) + c, valid, CHANNELS))
    mean, inverse = statistics(norm, WIDTH, c < WIDTH, epsilon)
    g = tl.load(GNORM + r * CHANNELS + c, mask=valid, other=0.0)
    level = tl.sum(g, 1)[:, None] / WIDTH
    along = tl.sum(g * (norm - mean), 1)[:, None] * inverse / WIDTH
    ga = multiply_parts(G, MIX, SCRATCH, row, n, valid, CHANNELS, STEP, SPLIT, PRECISION)
    a = load9(A + r * (9 * CHANNELS) + n, valid, CHANNELS)
    gn = tl.load(GNORM + r * CHANNELS + n, mask=valid, other=0.0)
    gn = inverse * (gn - level - (squared_norm(a) - mean) * inverse * along)
    store9(GA + r * (9 * CHANNELS) + n, add9(ga, part_norms_gradient(a, gn, gn, gn)), valid, CHANNELS)
