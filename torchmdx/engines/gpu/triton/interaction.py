"""The maps of an interaction layer within each atom, before and after its messages, and their gradients.

::

    Y = X̂ W₁          P = product(Y, M)          D = P̂ W₂          X' = X̂ + D + (1 + q/10) D D

with X̂ = X/(|X|²+1). Products with weights are in tf32_product.py; these kernels do the elementwise
work between them. 3x3 matrices exist in registers only. A program takes ROWS atoms and all channels.

::

    | buffer | shape | holds |
    |---|---|---|
    | X | [N,9,C] | X̂ of every layer's input; of the last output X itself |
    | INVERSE | [N,C] | 1/(|X|²+1) of every layer's input |
    | D | [N,9,C] | D; its gradient in the backward pass |
    | M | [N,9,C] | M; its gradient in the backward pass |
"""

import triton
import triton.language as tl

from torchmdx.engines.gpu.triton.activations import activate, slope
from torchmdx.engines.gpu.triton.nine import (
    add9,
    charge_factor,
    dot_parts,
    load3,
    load9,
    message_product,
    message_product_gradient,
    normalise_gradient,
    scale9,
    scale_parts,
    square,
    square_gradient,
    squared_norm,
    store3,
    store9,
)


@triton.jit
def store_output(X, INVERSE, x, row, n, valid, CHANNELS: tl.constexpr, LAST: tl.constexpr):
    """Writes what the next layer reads: X̂ and, unless INVERSE is None, 1/(|X|²+1); or X itself, for the readout."""
    r = row.to(tl.int64)[:, None]
    if not LAST:
        inverse = 1.0 / (squared_norm(x) + 1.0)
        if INVERSE is not None:
            tl.store(INVERSE + r * CHANNELS + n, inverse, mask=valid)
        x = scale9(x, inverse)
    store9(X + r * (9 * CHANNELS) + n, x, valid, CHANNELS)


@triton.jit
def store_gradient(
    G, D, MIXED, GATE, CHARGE, SYSTEM, g, row, n, num_atoms,
    CHANNELS: tl.constexpr, ACTIVATION: tl.constexpr, EMBEDDING: tl.constexpr,
):  # fmt: skip
    """Writes the gradients that the kernels of the layer before need, from the gradient g in its output X'.

    Of a layer: g, and D becomes the gradient in D. Of the embedding, X' = MIXED act(GATE): G is the gradient in MIXED,
    and GATE becomes its own gradient.
    """
    valid = (row < num_atoms)[:, None]
    r = row.to(tl.int64)[:, None]
    at = r * (9 * CHANNELS) + n
    if EMBEDDING:
        gate = GATE + r * (3 * CHANNELS) + n
        z0, z1, z2 = load3(gate, valid, CHANNELS)
        s0, s1, s2 = dot_parts(g, load9(MIXED + at, valid, CHANNELS))
        s = s0 * slope(z0, ACTIVATION), s1 * slope(z1, ACTIVATION), s2 * slope(z2, ACTIVATION)
        store3(gate, s, valid, CHANNELS)
        g = scale_parts(g, activate(z0, ACTIVATION), activate(z1, ACTIVATION), activate(z2, ACTIVATION))
    else:
        d = load9(D + at, valid, CHANNELS)
        factor = charge_factor(CHARGE, SYSTEM, row, row < num_atoms)
        store9(D + at, add9(g, scale9(square_gradient(d, g), factor)), valid, CHANNELS)
    store9(G + at, g, valid, CHANNELS)


@triton.jit
def gated_tensors(MIXED, GATE, valid, CHANNELS: tl.constexpr, ACTIVATION: tl.constexpr):
    """MIXED act(GATE), from pointers to the blocks of their first components."""
    g0, g1, g2 = load3(GATE, valid, CHANNELS)
    g0, g1, g2 = activate(g0, ACTIVATION), activate(g1, ACTIVATION), activate(g2, ACTIVATION)
    return scale_parts(load9(MIXED, valid, CHANNELS), g0, g1, g2)


@triton.jit
def atoms_here(num_atoms, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """(atoms of this program, all channels [1,C], whether the atoms exist [ROWS,1])."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    return row, tl.arange(0, CHANNELS)[None, :], (row < num_atoms)[:, None]


@triton.jit
def updated(x, d, factor):
    """X' = X̂ + D + (1 + q/10) D D."""
    return add9(add9(x, d), scale9(square(d), factor))


@triton.jit(do_not_specialize=["num_atoms"])
def update(
    D, X, CHARGE, SYSTEM, OUT, INVERSE, num_atoms,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """X' = X̂ + D + (1 + q/10) D D, in OUT."""
    if num_atoms.dtype.is_ptr():
        num_atoms = tl.load(num_atoms)
        if tl.program_id(0) * ROWS >= num_atoms:
            return
    row, n, valid = atoms_here(num_atoms, ROWS, CHANNELS)
    at = row.to(tl.int64)[:, None] * (9 * CHANNELS) + n
    d = load9(D + at, valid, CHANNELS)
    factor = charge_factor(CHARGE, SYSTEM, row, row < num_atoms)
    x = updated(load9(X + at, valid, CHANNELS), d, factor)
    store_output(OUT, INVERSE, x, row, n, valid, CHANNELS, LAST)


@triton.jit(do_not_specialize=["num_atoms"])
def update_gradient(
    G, Y, M, CHARGE, SYSTEM, num_atoms,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, REFLECTIONS: tl.constexpr,
):  # fmt: skip
    """Gradients in Y (without the part through messages) and in M, from the gradient G in P̂, in place.

    G becomes the gradient in Y, M that in M.
    """
    if num_atoms.dtype.is_ptr():
        num_atoms = tl.load(num_atoms)
        if tl.program_id(0) * ROWS >= num_atoms:
            return
    row, n, valid = atoms_here(num_atoms, ROWS, CHANNELS)
    at = row.to(tl.int64)[:, None] * (9 * CHANNELS) + n
    g = load9(G + at, valid, CHANNELS)
    factor = charge_factor(CHARGE, SYSTEM, row, row < num_atoms)
    y, m = load9(Y + at, valid, CHANNELS), load9(M + at, valid, CHANNELS)
    p = message_product(y, m, factor, REFLECTIONS)
    inverse = 1.0 / (squared_norm(p) + 1.0)
    g = normalise_gradient(scale9(p, inverse), inverse, g)
    gy, gm = message_product_gradient(y, m, g, factor, REFLECTIONS)
    store9(G + at, gy, valid, CHANNELS)
    store9(M + at, gm, valid, CHANNELS)


@triton.jit(do_not_specialize=["num_atoms", "num_received"])
def mix_in_gradient(
    GX, X, INVERSE, G, D, MIXED, GATE, CHARGE, SYSTEM, num_atoms, num_received,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, ACTIVATION: tl.constexpr, EMBEDDING: tl.constexpr,
):  # fmt: skip
    """The gradient in X: G, which reached X̂ from this layer's output, plus GX, which came through Y; through X̂.

    D, MIXED and GATE belong to what made X: the layer before, or the EMBEDDING; see store_gradient. num_received: atoms
    with an output of this layer; G is theirs, and zero for later atoms.
    INVERSE: if None, X is evaluated again, from D and X̂ of the layer before, in X, or from MIXED and GATE.
    """
    if num_atoms.dtype.is_ptr():
        num_atoms = tl.load(num_atoms)
        if tl.program_id(0) * ROWS >= num_atoms:
            return
    row, n, valid = atoms_here(num_atoms, ROWS, CHANNELS)
    r = row.to(tl.int64)[:, None]
    at = r * (9 * CHANNELS) + n
    received = valid
    if num_received.dtype.is_ptr():
        received = (row < tl.load(num_received))[:, None]
    g = add9(load9(GX + at, valid, CHANNELS), load9(G + at, received, CHANNELS))
    if INVERSE is not None:
        inverse = tl.load(INVERSE + r * CHANNELS + n, mask=valid, other=0.0)
        x = load9(X + at, valid, CHANNELS)
    else:
        if EMBEDDING:
            x = gated_tensors(MIXED + at, GATE + r * (3 * CHANNELS) + n, valid, CHANNELS, ACTIVATION)
        else:
            factor = charge_factor(CHARGE, SYSTEM, row, row < num_atoms)
            x = updated(load9(X + at, valid, CHANNELS), load9(D + at, valid, CHANNELS), factor)
        inverse = 1.0 / (squared_norm(x) + 1.0)
        x = scale9(x, inverse)
    g = normalise_gradient(x, inverse, g)
    store_gradient(G, D, MIXED, GATE, CHARGE, SYSTEM, g, row, n, num_atoms, CHANNELS, ACTIVATION, EMBEDDING)
