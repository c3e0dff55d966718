"""From the last tensors to the energies of atoms, and the gradient of the energy in those tensors.

::

    | buffer | shape | holds |
    |---|---|---|
    | FEATURES | [N,C] | the readout before its activation |
    | GFEATURES | [N,C] | the gradient of the energy there |
    | Z | [N,LAYERS,HEAD] | hidden layers of the head, if there are several; then their gradients |
    | NORMS | [N,3C] | the standardised norms of the three parts; its gradient in the backward pass |
    | ENERGIES | [N] float64 | scale · head + reference energy of the element |
"""

import triton
import triton.language as tl

from torchmdx.engines.gpu.triton.activations import activate, slope
from torchmdx.engines.gpu.triton.interaction import atoms_here, store_gradient, updated
from torchmdx.engines.gpu.triton.layer_norm import part_gradient, part_statistics_of_rows
from torchmdx.engines.gpu.triton.nine import charge_factor, load3, load9, part_norms, part_norms_gradient, store3


@triton.jit(do_not_specialize=["num_atoms"])
def read_norms(
    X,
    D,
    CHARGE,
    SYSTEM,
    SCALE,
    OFFSET,
    NORMS,
    num_atoms,
    epsilon,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """NORMS [N,3,C] = LayerNorm(|s|², |a|², |q|²) of the last tensors, which are X if D is None; see `last_tensors`."""
    if num_atoms.dtype.is_ptr():
        num_atoms = tl.load(num_atoms)
        if tl.program_id(0) * ROWS >= num_atoms:
            return
    row, c, valid = atoms_here(num_atoms, ROWS, CHANNELS)
    r = row.to(tl.int64)[:, None]
    n0, n1, n2 = part_norms(last_tensors(X, D, CHARGE, SYSTEM, row, c, num_atoms, CHANNELS))
    mean, inverse = part_statistics_of_rows(n0, n1, n2, c < WIDTH, WIDTH, epsilon)
    n0 = (n0 - mean) * inverse * tl.load(SCALE + c) + tl.load(OFFSET + c)
    n1 = (n1 - mean) * inverse * tl.load(SCALE + CHANNELS + c) + tl.load(OFFSET + CHANNELS + c)
    n2 = (n2 - mean) * inverse * tl.load(SCALE + 2 * CHANNELS + c) + tl.load(OFFSET + 2 * CHANNELS + c)
    at = NORMS + r * (3 * CHANNELS) + c
    store3(at, (n0, n1, n2), valid, CHANNELS)


@triton.jit
def last_tensors(X, D, CHARGE, SYSTEM, row, c, num_atoms, CHANNELS: tl.constexpr):
    """The tensors X, or those of the last layer from its X̂ in X and its D."""
    at = row.to(tl.int64)[:, None] * (9 * CHANNELS) + c
    valid = (row < num_atoms)[:, None]
    x = load9(X + at, valid, CHANNELS)
    if D is not None:
        factor = charge_factor(CHARGE, SYSTEM, row, row < num_atoms)
        x = updated(x, load9(D + at, valid, CHANNELS), factor)
    return x


@triton.jit(do_not_specialize=["num_atoms"])
def read_energies(
    FEATURES,
    GFEATURES,
    Z,
    W,
    MORE,
    BIAS,
    LAST,
    CONSTANTS,
    REFERENCES,
    NUMBERS,
    ENERGIES,
    INPUTS,
    num_atoms,
    CHANNELS: tl.constexpr,
    HEAD: tl.constexpr,
    LAYERS: tl.constexpr,
    ATOMS: tl.constexpr,
    STEP: tl.constexpr,
    READOUT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GRADIENT: tl.constexpr,
    INPUT_WIDTH: tl.constexpr,
):
    """ENERGIES = scale (act(act'(FEATURES) W + b) · LAST + last bias) + reference. W [C,HEAD].

    With LAYERS hidden layers there are as many biases, and the matrices beyond the first are MORE [LAYERS-1,HEAD,HEAD].
    READOUT: the activation act' of the features. CONSTANTS: scale and last bias, float64. GRADIENT: GFEATURES is
    written. INPUTS [N,INPUT_WIDTH]: inputs of the last layer, and 1 for its bias; None where they are not wanted.
    """
    if num_atoms.dtype.is_ptr():
        num_atoms = tl.load(num_atoms)
        if tl.program_id(0) * ATOMS >= num_atoms:
            return
    row = tl.program_id(0) * ATOMS + tl.arange(0, ATOMS)
    valid = row < num_atoms
    keep = valid[:, None]
    base = FEATURES + row.to(tl.int64)[:, None] * CHANNELS
    h = tl.arange(0, HEAD)
    HEAD_STEP: tl.constexpr = STEP if STEP < HEAD else HEAD
    z = tl.zeros((ATOMS, HEAD), tl.float32) + tl.load(BIAS + h)[None, :]
    for first in range(0, CHANNELS, STEP):
        k = first + tl.arange(0, STEP)
        x = activate(tl.load(base + k[None, :], mask=keep, other=0.0), READOUT)
        w = tl.load(W + k[:, None] * HEAD + h[None, :])
        z = tl.dot(x, w, z, input_precision="tf32x3")
    hidden = Z + row.to(tl.int64)[:, None] * (LAYERS * HEAD)
    for layer in range(1, LAYERS):
        tl.store(hidden + (layer - 1) * HEAD + h[None, :], z, mask=keep)
        x = activate(z, ACTIVATION)
        for first in range(0, HEAD, HEAD_STEP):
            k = first + tl.arange(0, HEAD_STEP)
            w = tl.load(MORE + (layer - 1) * (HEAD * HEAD) + h[:, None] * HEAD + k[None, :])
            y = tl.dot(x, w, input_precision="tf32x3") + tl.load(BIAS + layer * HEAD + k)[None, :]
            tl.store(hidden + layer * HEAD + k[None, :], y, mask=keep)
        tl.debug_barrier()
        z = tl.load(hidden + layer * HEAD + h[None, :], mask=keep, other=0.0)
    last = tl.load(LAST + h)[None, :]
    scale = tl.load(CONSTANTS)
    output = tl.sum((activate(z, ACTIVATION) * last).to(tl.float64), 1) + tl.load(CONSTANTS + 1)
    reference = tl.load(REFERENCES + tl.load(NUMBERS + row, mask=valid, other=0), mask=valid, other=0.0)
    tl.store(ENERGIES + row, output * scale + reference, mask=valid)
    if INPUTS is not None:
        to = INPUTS + row.to(tl.int64) * INPUT_WIDTH
        tl.store(to[:, None] + h[None, :], activate(z, ACTIVATION), mask=keep & (h < INPUT_WIDTH - 1)[None, :])
        tl.store(to + INPUT_WIDTH - 1, tl.full((ATOMS,), 1.0, tl.float32), mask=valid)
    if GRADIENT:
        gz = slope(z, ACTIVATION) * last * scale.to(tl.float32)
        for step in range(1, LAYERS):
            layer = LAYERS - step
            tl.debug_barrier()  # the gradient takes the place of this layer, which all threads have read
            for first in range(0, HEAD, HEAD_STEP):
                k = first + tl.arange(0, HEAD_STEP)
                w = tl.load(MORE + (layer - 1) * (HEAD * HEAD) + k[None, :] * HEAD + h[:, None])
                g = tl.dot(gz, w, input_precision="tf32x3")
                before = tl.load(hidden + (layer - 1) * HEAD + k[None, :], mask=keep, other=0.0)
                tl.store(hidden + layer * HEAD + k[None, :], g * slope(before, ACTIVATION), mask=keep)
            tl.debug_barrier()
            gz = tl.load(hidden + layer * HEAD + h[None, :], mask=keep, other=0.0)
        for first in range(0, CHANNELS, STEP):
            k = first + tl.arange(0, STEP)
            w = tl.load(W + k[None, :] * HEAD + h[:, None])
            g = tl.dot(gz, w, input_precision="tf32x3")
            g *= slope(tl.load(base + k[None, :], mask=keep, other=0.0), READOUT)
            tl.store(GFEATURES + row.to(tl.int64)[:, None] * CHANNELS + k[None, :], g, mask=keep)


@triton.jit(do_not_specialize=["num_atoms"])
def read_features_gradient(
    NORMS,
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
    ROWS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    EMBEDDING: tl.constexpr,
    UPDATED: tl.constexpr,
):
    """From the gradient in NORMS, through the LayerNorm, the gradient in the last tensors, as store_gradient does.

    Those are X if UPDATED, else they are evaluated again from X and D; see `last_tensors`.
    """
    if num_atoms.dtype.is_ptr():
        num_atoms = tl.load(num_atoms)
        if tl.program_id(0) * ROWS >= num_atoms:
            return
    row, c, valid = atoms_here(num_atoms, ROWS, CHANNELS)
    x = last_tensors(X, None if UPDATED else D, CHARGE, SYSTEM, row, c, num_atoms, CHANNELS)
    g = read_gradient(x, NORMS, row, c, valid, epsilon, WIDTH, CHANNELS)
    store_gradient(G, D, MIXED, GATE, CHARGE, SYSTEM, g, row, c, num_atoms, CHANNELS, ACTIVATION, EMBEDDING)


@triton.jit
def read_gradient(x, NORMS, row, c, valid, epsilon, WIDTH: tl.constexpr, CHANNELS: tl.constexpr):
    """The gradient in X from that in NORMS."""
    n0, n1, n2 = part_norms(x)
    g0, g1, g2 = standardised_gradient(n0, n1, n2, NORMS, row, c, valid, epsilon, WIDTH, CHANNELS)
    return part_norms_gradient(x, g0, g1, g2)


@triton.jit
def standardised_gradient(n0, n1, n2, GNORMS, row, c, valid, epsilon, WIDTH: tl.constexpr, CHANNELS: tl.constexpr):
    """From the gradient in standardised numbers, [N,3,C] in memory, that in the three norms."""
    mean, inverse = part_statistics_of_rows(n0, n1, n2, c < WIDTH, WIDTH, epsilon)
    g0, g1, g2 = load3(GNORMS + row.to(tl.int64)[:, None] * (3 * CHANNELS) + c, valid, CHANNELS)
    n0, n1, n2 = (n0 - mean) * inverse, (n1 - mean) * inverse, (n2 - mean) * inverse
    return part_gradient(g0, g1, g2, n0, n1, n2, inverse, WIDTH)
