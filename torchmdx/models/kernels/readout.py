"""From the last tensors to the energies of atoms, and the gradient of the energy in those tensors.

| buffer | shape | holds |
|---|---|---|
| FEATURES | [N,C] | the readout before its activation |
| GFEATURES | [N,C] | the gradient of the energy there |
| GNORMS | [N,3C] | the gradient in the standardised norms of the three parts |
| ENERGIES | [N] float64 | scale · head + reference energy of the element |
"""

import triton
import triton.language as tl

from torchmdx.models.kernels.activations import activate, slope
from torchmdx.models.kernels.components import load9, part_norms, part_norms_gradient
from torchmdx.models.kernels.interaction import store_gradient
from torchmdx.models.kernels.products import multiply


@triton.jit
def _statistics(n0, n1, n2, real, width, epsilon):
    """Mean and 1 / deviation over the 3 · width real norms of each row."""
    mean = (tl.sum(n0, 1) + tl.sum(n1, 1) + tl.sum(n2, 1))[:, None] / (3 * width)
    c0 = tl.where(real, n0 - mean, 0.0)
    c1 = tl.where(real, n1 - mean, 0.0)
    c2 = tl.where(real, n2 - mean, 0.0)
    variance = tl.sum(c0 * c0 + c1 * c1 + c2 * c2, 1)[:, None] / (3 * width)
    return mean, 1.0 / tl.sqrt_rn(variance + epsilon)


@triton.jit(do_not_specialize=["num_atoms"])
def read_features(
    X,
    SCALE,
    OFFSET,
    W,
    BIAS,
    FEATURES,
    num_atoms,
    epsilon,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    ATOMS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """FEATURES = LayerNorm(|s|², |a|², |q|²) W + b, W [3,C,C]."""
    row = tl.program_id(0) * ATOMS + tl.arange(0, ATOMS)
    n = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    valid = (row < num_atoms)[:, None]
    base = X + row.to(tl.int64)[:, None] * (9 * CHANNELS)
    c = tl.arange(0, CHANNELS)[None, :]
    n0, n1, n2 = part_norms(load9(base + c, valid, CHANNELS))
    mean, inverse = _statistics(n0, n1, n2, c < WIDTH, WIDTH, epsilon)
    acc = tl.zeros((ATOMS, COLUMNS), tl.float32) + tl.load(BIAS + n)
    for first in range(0, CHANNELS, STEP):
        k = first + tl.arange(0, STEP)
        x0, x1, x2 = part_norms(load9(base + k[None, :], valid, CHANNELS))
        scale = SCALE + k[None, :]
        offset = OFFSET + k[None, :]
        x0 = (x0 - mean) * inverse * tl.load(scale) + tl.load(offset)
        x1 = (x1 - mean) * inverse * tl.load(scale + CHANNELS) + tl.load(offset + CHANNELS)
        x2 = (x2 - mean) * inverse * tl.load(scale + 2 * CHANNELS) + tl.load(offset + 2 * CHANNELS)
        w = W + k[:, None] * CHANNELS + n
        acc = tl.dot(x0, tl.load(w), acc, input_precision=PRECISION)
        acc = tl.dot(x1, tl.load(w + CHANNELS * CHANNELS), acc, input_precision=PRECISION)
        acc = tl.dot(x2, tl.load(w + 2 * CHANNELS * CHANNELS), acc, input_precision=PRECISION)
    tl.store(FEATURES + row.to(tl.int64)[:, None] * CHANNELS + n, acc, mask=valid)


@triton.jit(do_not_specialize=["num_atoms"])
def read_energies(
    FEATURES,
    GFEATURES,
    W,
    BIAS,
    LAST,
    CONSTANTS,
    REFERENCES,
    NUMBERS,
    ENERGIES,
    num_atoms,
    CHANNELS: tl.constexpr,
    HEAD: tl.constexpr,
    ATOMS: tl.constexpr,
    STEP: tl.constexpr,
    PRECISION: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GRADIENT: tl.constexpr,
):
    """ENERGIES = scale (act(act(FEATURES) W + b) · LAST + last bias) + reference. W [C,HEAD].

    CONSTANTS: scale and last bias, float64. GRADIENT: GFEATURES is written.
    """
    row = tl.program_id(0) * ATOMS + tl.arange(0, ATOMS)
    valid = row < num_atoms
    keep = valid[:, None]
    base = FEATURES + row.to(tl.int64)[:, None] * CHANNELS
    h = tl.arange(0, HEAD)
    z = tl.zeros((ATOMS, HEAD), tl.float32) + tl.load(BIAS + h)[None, :]
    for first in range(0, CHANNELS, STEP):
        k = first + tl.arange(0, STEP)
        x = activate(tl.load(base + k[None, :], mask=keep, other=0.0), ACTIVATION)
        z = tl.dot(x, tl.load(W + k[:, None] * HEAD + h[None, :]), z, input_precision=PRECISION)
    last = tl.load(LAST + h)[None, :]
    scale = tl.load(CONSTANTS)
    output = tl.sum((activate(z, ACTIVATION) * last).to(tl.float64), 1) + tl.load(CONSTANTS + 1)
    reference = tl.load(REFERENCES + tl.load(NUMBERS + row, mask=valid, other=0), mask=valid, other=0.0)
    tl.store(ENERGIES + row, output * scale + reference, mask=valid)
    if GRADIENT:
        gz = slope(z, ACTIVATION) * last * scale.to(tl.float32)
        for first in range(0, CHANNELS, STEP):
            k = first + tl.arange(0, STEP)
            w = tl.load(W + k[None, :] * HEAD + h[:, None])
            g = tl.dot(gz, w, input_precision=PRECISION)
            g *= slope(tl.load(base + k[None, :], mask=keep, other=0.0), ACTIVATION)
            tl.store(GFEATURES + row.to(tl.int64)[:, None] * CHANNELS + k[None, :], g, mask=keep)


@triton.jit(do_not_specialize=["num_atoms"])
def read_norms_gradient(
    GFEATURES,
    W,
    SCALE,
    GNORMS,
    num_atoms,
    CHANNELS: tl.constexpr,
    ATOMS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """GNORMS [N,3C], the gradient in the standardised norms: (GFEATURES W) · scale, W [C,3C] here."""
    row = tl.program_id(0) * ATOMS + tl.arange(0, ATOMS)
    n = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    valid = (row < num_atoms)[:, None]
    r = row.to(tl.int64)[:, None]
    g = multiply(GFEATURES + r * CHANNELS, W, n, valid, CHANNELS, 3 * CHANNELS, STEP, SPLIT, PRECISION, "none")
    tl.store(GNORMS + r * (3 * CHANNELS) + n, g * tl.load(SCALE + n), mask=valid)


@triton.jit(do_not_specialize=["num_atoms"])
def read_features_gradient(
    GNORMS,
    X,
    G,
    D,
    MIXED,
    GATE,
    CHARGE,
    SYSTEM,
    num_atoms,
    epsilon,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    ATOMS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    EMBEDDING: tl.constexpr,
):
    """From GNORMS, through the LayerNorm, the gradient in X, passed on as store_gradient does."""
    row = tl.program_id(0) * ATOMS + tl.arange(0, ATOMS)
    c = tl.arange(0, CHANNELS)[None, :]
    valid = (row < num_atoms)[:, None]
    r = row.to(tl.int64)[:, None]
    x = load9(X + r * (9 * CHANNELS) + c, valid, CHANNELS)
    n0, n1, n2 = part_norms(x)
    mean, inverse = _statistics(n0, n1, n2, c < WIDTH, WIDTH, epsilon)
    gnorms = GNORMS + r * (3 * CHANNELS) + c
    g0 = tl.load(gnorms, mask=valid, other=0.0)
    g1 = tl.load(gnorms + CHANNELS, mask=valid, other=0.0)
    g2 = tl.load(gnorms + 2 * CHANNELS, mask=valid, other=0.0)
    n0, n1, n2 = (n0 - mean) * inverse, (n1 - mean) * inverse, (n2 - mean) * inverse
    level = tl.sum(g0 + g1 + g2, 1)[:, None] / (3 * WIDTH)
    along = tl.sum(g0 * n0 + g1 * n1 + g2 * n2, 1)[:, None] / (3 * WIDTH)
    g0 = inverse * (g0 - level - n0 * along)
    g1 = inverse * (g1 - level - n1 * along)
    g2 = inverse * (g2 - level - n2 * along)
    g = part_norms_gradient(x, g0, g1, g2)
    store_gradient(G, D, MIXED, GATE, CHARGE, SYSTEM, g, row, c, num_atoms, CHANNELS, ACTIVATION, EMBEDDING)
