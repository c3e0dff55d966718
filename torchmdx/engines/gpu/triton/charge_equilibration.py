"""Predicted charges, as in torchmdx.models.charge_equilibration, and the gradient through them.

::

  | buffer | shape | holds |
  |---|---|---|
  | NORMS | [N,3,C] | the standardised invariants s, |a|², |q|²; its gradient in the backward pass |
  | PROPOSED | [N,2,K] | p and f, the outputs of the network; its gradient in the backward pass |
  | Q | [N,K] | charges; its gradient in the backward pass |
  | SUMS | [S,2,K] | Q_total - Σ p, and Σ f² + slack, of each system; float64 |
  | PARTS_SUMS | [S,PARTS,2,K] | sums over parts of systems of many atoms (`sum_parts`), if PARTS > 1; float64 |
"""

import triton
import triton.language as tl

from torchmdx.engines.gpu.triton.forces import first_atom
from torchmdx.engines.gpu.triton.interaction import atoms_here, store_gradient
from torchmdx.engines.gpu.triton.layer_norm import part_statistics_of_rows
from torchmdx.engines.gpu.triton.nine import (
    add9,
    add_to_scalar,
    load9,
    normalise_gradient,
    part_norms,
    part_norms_gradient,
    scale9,
)
from torchmdx.engines.gpu.triton.readout import read_gradient, standardised_gradient


@triton.jit
def _tensors(X, INVERSE, row, n, valid, CHANNELS: tl.constexpr):
    """X of X̂ and 1/(|X|²+1)."""
    r = row.to(tl.int64)[:, None]
    inverse = tl.load(INVERSE + r * CHANNELS + n, mask=valid, other=1.0)
    return scale9(load9(X + r * (9 * CHANNELS) + n, valid, CHANNELS), 1.0 / inverse), inverse


@triton.jit(do_not_specialize=["num_atoms"])
def charge_norms(
    X, INVERSE, SCALE, OFFSET, NORMS, num_atoms, epsilon,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """NORMS = LayerNorm(s, |a|², |q|²) of X. The kernel reads X̂, except after the LAST layer, where it reads X."""
    row, c, valid = atoms_here(num_atoms, ROWS, CHANNELS)
    if LAST:
        x = load9(X + row.to(tl.int64)[:, None] * (9 * CHANNELS) + c, valid, CHANNELS)
    else:
        x, _ = _tensors(X, INVERSE, row, c, valid, CHANNELS)
    _, n1, n2 = part_norms(x)
    n0 = x[0]
    mean, inverse = part_statistics_of_rows(n0, n1, n2, c < WIDTH, WIDTH, epsilon)
    at = NORMS + row.to(tl.int64)[:, None] * (3 * CHANNELS) + c
    tl.store(at, (n0 - mean) * inverse * tl.load(SCALE + c) + tl.load(OFFSET + c), mask=valid)
    n1 = (n1 - mean) * inverse * tl.load(SCALE + CHANNELS + c) + tl.load(OFFSET + CHANNELS + c)
    tl.store(at + CHANNELS, n1, mask=valid)
    n2 = (n2 - mean) * inverse * tl.load(SCALE + 2 * CHANNELS + c) + tl.load(OFFSET + 2 * CHANNELS + c)
    tl.store(at + 2 * CHANNELS, n2, mask=valid)


@triton.jit
def _atoms_of(SYSTEM, num_atoms, SEARCH: tl.constexpr, ALONE: tl.constexpr):
    """The first atom of a program's system, and the one after its last. ALONE: there is one system."""
    if ALONE:
        first, last = 0, num_atoms
    else:
        first = first_atom(SYSTEM, num_atoms, tl.program_id(0), SEARCH)
        last = first_atom(SYSTEM, num_atoms, tl.program_id(0) + 1, SEARCH)
    return first, last


@triton.jit
def _sums_of(PROPOSED, first, last, least, step: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr):
    """Σ p and Σ (f² + least) over blocks of atoms that begin `step` apart."""
    k = tl.arange(0, K)[None, :]
    proposed = tl.zeros((BLOCK, K), tl.float64)
    shares = tl.zeros((BLOCK, K), tl.float64)
    for start in range(first, last, step):
        row = start + tl.arange(0, BLOCK)
        mask = (row < last)[:, None]
        at = PROPOSED + row.to(tl.int64)[:, None] * (2 * K) + k
        f = tl.load(at + K, mask=mask, other=0.0)
        proposed += tl.load(at, mask=mask, other=0.0).to(tl.float64)
        shares += tl.where(mask, f * f + least, 0.0).to(tl.float64)
    return tl.sum(proposed, 0), tl.sum(shares, 0)


@triton.jit
def _gradient_of(PROPOSED, GQ, first, last, least, step: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr):
    """Σ g (f² + least) over the same blocks, with the gradient g in the charges."""
    k = tl.arange(0, K)[None, :]
    common = tl.zeros((BLOCK, K), tl.float64)
    for start in range(first, last, step):
        row = start + tl.arange(0, BLOCK)
        mask = (row < last)[:, None]
        f = tl.load(PROPOSED + row.to(tl.int64)[:, None] * (2 * K) + K + k, mask=mask, other=0.0)
        g = tl.load(GQ + row.to(tl.int64)[:, None] * K + k, mask=mask, other=0.0)
        common += g.to(tl.float64) * (f * f + least)
    return tl.sum(common, 0)


@triton.jit
def _places(PARTS_SUMS, part, K: tl.constexpr, PARTS: tl.constexpr):
    """Where the sums of some parts of a program's system are."""
    return PARTS_SUMS + (tl.program_id(0) * PARTS + part) * (2 * K) + tl.arange(0, K)


@triton.jit(do_not_specialize=["num_atoms"])
def sum_parts(
    PROPOSED, GQ, SYSTEM, PARTS_SUMS, num_atoms, least, K: tl.constexpr, BLOCK: tl.constexpr, SEARCH: tl.constexpr,
    PARTS: tl.constexpr, ALONE: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """PARTS_SUMS for `equilibrate` or, if BACK, `equilibrate_gradient`. A program is a part of a system."""
    part = tl.program_id(1)
    first, last = _atoms_of(SYSTEM, num_atoms, SEARCH, ALONE)
    first += part * BLOCK
    if BACK:
        common = _gradient_of(PROPOSED, GQ, first, last, least, PARTS * BLOCK, K, BLOCK)
        tl.store(_places(PARTS_SUMS, part, K, PARTS), common)
    else:
        proposed, shares = _sums_of(PROPOSED, first, last, least, PARTS * BLOCK, K, BLOCK)
        tl.store(_places(PARTS_SUMS, part, K, PARTS), proposed)
        tl.store(_places(PARTS_SUMS, part, K, PARTS) + K, shares)


@triton.jit(do_not_specialize=["num_atoms"])
def equilibrate(
    PROPOSED, SYSTEM, CHARGE, Q, SUMS, PARTS_SUMS, num_atoms, least, slack, K: tl.constexpr, BLOCK: tl.constexpr,
    SEARCH: tl.constexpr, PARTS: tl.constexpr, ALONE: tl.constexpr,
):  # fmt: skip
    """Q = p + (f² + least) / (Σ (f² + least) + slack) · (Q_total - Σ p). A program is a part of a system."""
    system, part = tl.program_id(0), tl.program_id(1)
    first, last = _atoms_of(SYSTEM, num_atoms, SEARCH, ALONE)
    k = tl.arange(0, K)
    if PARTS == 1:
        proposed, shares = _sums_of(PROPOSED, first, last, least, BLOCK, K, BLOCK)
    else:
        places = _places(PARTS_SUMS, tl.arange(0, PARTS)[:, None], K, PARTS)
        proposed, shares = tl.sum(tl.load(places), 0), tl.sum(tl.load(places + K), 0)
    missing = tl.load(CHARGE + system).to(tl.float64) - proposed
    whole = shares + slack
    if part == 0:
        tl.store(SUMS + system * (2 * K) + k, missing)
        tl.store(SUMS + system * (2 * K) + K + k, whole)
    each = (missing / whole)[None, :]
    for start in range(first + part * BLOCK, last, PARTS * BLOCK):
        row = start + tl.arange(0, BLOCK)
        mask = (row < last)[:, None]
        at = PROPOSED + row.to(tl.int64)[:, None] * (2 * K) + k[None, :]
        f = tl.load(at + K, mask=mask, other=0.0)
        q = tl.load(at, mask=mask, other=0.0) + (f * f + least) * each
        tl.store(Q + row.to(tl.int64)[:, None] * K + k[None, :], q.to(tl.float32), mask=mask)


@triton.jit(do_not_specialize=["num_atoms"])
def equilibrate_alone(PROPOSED, CHARGE, Q, num_atoms, least, slack, K: tl.constexpr, BLOCK: tl.constexpr):
    """`equilibrate` of one system and several layers, one a program: PROPOSED [layers,N,2,K], Q [layers,N,K]."""
    PROPOSED += tl.program_id(0).to(tl.int64) * num_atoms * (2 * K)
    Q += tl.program_id(0).to(tl.int64) * num_atoms * K
    proposed, shares = _sums_of(PROPOSED, 0, num_atoms, least, BLOCK, K, BLOCK)
    each = ((tl.load(CHARGE).to(tl.float64) - proposed) / (shares + slack))[None, :]
    k = tl.arange(0, K)[None, :]
    for start in range(0, num_atoms, BLOCK):
        row = start + tl.arange(0, BLOCK)
        mask = (row < num_atoms)[:, None]
        at = PROPOSED + row.to(tl.int64)[:, None] * (2 * K) + k
        f = tl.load(at + K, mask=mask, other=0.0)
        q = tl.load(at, mask=mask, other=0.0) + (f * f + least) * each
        tl.store(Q + row.to(tl.int64)[:, None] * K + k, q.to(tl.float32), mask=mask)


@triton.jit(do_not_specialize=["num_atoms"])
def equilibrate_gradient(
    PROPOSED, GQ, SYSTEM, SUMS, PARTS_SUMS, num_atoms, least, K: tl.constexpr, BLOCK: tl.constexpr,
    SEARCH: tl.constexpr, PARTS: tl.constexpr, ALONE: tl.constexpr,
):  # fmt: skip
    """Overwrites PROPOSED with its gradient, from the gradient GQ in the charges."""
    system, part = tl.program_id(0), tl.program_id(1)
    first, last = _atoms_of(SYSTEM, num_atoms, SEARCH, ALONE)
    k = tl.arange(0, K)
    missing = tl.load(SUMS + system * (2 * K) + k)[None, :]
    whole = tl.load(SUMS + system * (2 * K) + K + k)[None, :]
    if PARTS == 1:
        common = _gradient_of(PROPOSED, GQ, first, last, least, BLOCK, K, BLOCK)
    else:
        common = tl.sum(tl.load(_places(PARTS_SUMS, tl.arange(0, PARTS)[:, None], K, PARTS)), 0)
    level = common[None, :] / whole
    for start in range(first + part * BLOCK, last, PARTS * BLOCK):
        row = start + tl.arange(0, BLOCK)
        mask = (row < last)[:, None]
        at = PROPOSED + row.to(tl.int64)[:, None] * (2 * K) + k[None, :]
        f = tl.load(at + K, mask=mask, other=0.0)
        g = tl.load(GQ + row.to(tl.int64)[:, None] * K + k[None, :], mask=mask, other=0.0) - level
        tl.store(at, g.to(tl.float32), mask=mask)
        tl.store(at + K, (2.0 * f * (missing / whole) * g).to(tl.float32), mask=mask)


@triton.jit(do_not_specialize=["num_atoms"])
def shares(Q, W, SHARES, num_atoms, K: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr):
    """SHARES [N,2,C] = Q W, W [K,2,C]: what the charges of an atom add to z₁ of the edges to it and from it."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    valid = (row < num_atoms)[:, None]
    total = tl.zeros((ROWS, CHANNELS), tl.float32)
    for k in range(K):
        q = tl.load(Q + row.to(tl.int64) * K + k, mask=row < num_atoms, other=0.0)[:, None]
        total += q * tl.load(W + k * (2 * CHANNELS) + c)
    tl.store(SHARES + row.to(tl.int64)[:, None] * (2 * CHANNELS) + c, total, mask=valid)


@triton.jit(do_not_specialize=["num_atoms"])
def shares_gradient(
    SHARES, W, GQ, num_atoms, K: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, ADD: tl.constexpr
):
    """GQ [N,K] from the gradient in SHARES. ADD: adds to GQ instead of overwriting it. Up to 16 charges at a time."""
    GROUP: tl.constexpr = K if K < 16 else 16
    c = tl.arange(0, 2 * CHANNELS)
    for first in range(0, K, GROUP):
        k = first + tl.arange(0, GROUP)
        w = tl.load(W + k[:, None] * (2 * CHANNELS) + c[None, :])
        for step in range(ROWS):
            row = (tl.program_id(0) * ROWS + step).to(tl.int64)
            if row < num_atoms:
                g = tl.load(SHARES + row * (2 * CHANNELS) + c)
                total = tl.sum(w * g[None, :], 1)
                if ADD:
                    total += tl.load(GQ + row * K + k)
                tl.store(GQ + row * K + k, total)


@triton.jit
def _through_norms(x, GNORMS, row, c, valid, epsilon, WIDTH: tl.constexpr, CHANNELS: tl.constexpr):
    """The gradient in X from the gradient after the weights of the LayerNorm."""
    _, n1, n2 = part_norms(x)
    n0 = x[0]
    g0, g1, g2 = standardised_gradient(n0, n1, n2, GNORMS, row, c, valid, epsilon, WIDTH, CHANNELS)
    return add_to_scalar(part_norms_gradient(x, 0.0, g1, g2), g0)


@triton.jit(do_not_specialize=["num_atoms"])
def charged_mix_in_gradient(
    GX, X, INVERSE, G, NORMS, D, MIXED, GATE, CHARGE, SYSTEM, num_atoms, epsilon,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, ACTIVATION: tl.constexpr,
    EMBEDDING: tl.constexpr,
):  # fmt: skip
    """interaction.mix_in_gradient, plus the gradient through the charges predicted from X, by NORMS."""
    row, n, valid = atoms_here(num_atoms, ROWS, CHANNELS)
    at = row.to(tl.int64)[:, None] * (9 * CHANNELS) + n
    x, inverse = _tensors(X, INVERSE, row, n, valid, CHANNELS)
    g = add9(load9(GX + at, valid, CHANNELS), load9(G + at, valid, CHANNELS))
    g = normalise_gradient(scale9(x, inverse), inverse, g)
    g = add9(g, _through_norms(x, NORMS, row, n, valid, epsilon, WIDTH, CHANNELS))
    store_gradient(G, D, MIXED, GATE, CHARGE, SYSTEM, g, row, n, num_atoms, CHANNELS, ACTIVATION, EMBEDDING)


@triton.jit(do_not_specialize=["num_atoms"])
def charged_read_gradient(
    NORMS, OF_CHARGES, X, G, D, MIXED, GATE, CHARGE, SYSTEM, num_atoms, epsilon, of_charges_epsilon,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, ACTIVATION: tl.constexpr,
    EMBEDDING: tl.constexpr,
):  # fmt: skip
    """readout.read_features_gradient, plus the gradient through the last charges, by OF_CHARGES."""
    row, c, valid = atoms_here(num_atoms, ROWS, CHANNELS)
    x = load9(X + row.to(tl.int64)[:, None] * (9 * CHANNELS) + c, valid, CHANNELS)
    g = read_gradient(x, NORMS, row, c, valid, epsilon, WIDTH, CHANNELS)
    g = add9(g, _through_norms(x, OF_CHARGES, row, c, valid, of_charges_epsilon, WIDTH, CHANNELS))
    store_gradient(G, D, MIXED, GATE, CHARGE, SYSTEM, g, row, c, num_atoms, CHANNELS, ACTIVATION, EMBEDDING)
