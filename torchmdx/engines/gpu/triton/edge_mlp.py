"""TensorNet2's filters, which depend on the charges of both atoms, with messages and gradients.

A small network is evaluated for every edge::

    z₁ = a(r) + T_i + S_j          z₂ = W₂ act(z₁) + b₂          z₃ = W₃ act(z₂) + b₃          f = act(z₃) cut(r)

a(r), the radial basis after the first map, is read from a table; T and S are the shares of the charges of target and
source. Rows are the N atoms (the message of an atom to itself, at distance 0), then the E slots of the list. Rows of
slots without an edge, and of edges beyond the cutoff, are undefined and never read.

::

    | buffer | shape | holds |
    |---|---|---|
    | Z1 | [N+E,C] | z₁; its gradient in the backward pass |
    | Z3 | [N+E,3,C] | z₃; its gradient in the backward pass |
    | SHARES | [N,2,C] | T and S; its gradient in the backward pass |
"""

import triton
import triton.language as tl

from torchmdx.engines.gpu.triton.activations import activate, slope
from torchmdx.engines.gpu.triton.edge_geometry import cosine_cut
from torchmdx.engines.gpu.triton.edge_walk import (
    edges_at,
    filter_and_slope,
    filter_part,
    read_edge,
    row_ends,
)
from torchmdx.engines.gpu.triton.messages import store_product
from torchmdx.engines.gpu.triton.nine import (
    add9,
    between,
    dot_parts,
    load3,
    load9,
    nine,
    scale_parts,
    store3,
    store9,
    sum_edges,
)
from torchmdx.engines.gpu.triton.tf32_product import product


@triton.jit(do_not_specialize=["num_atoms"])
def first_values(
    SHARES, TABLE, OWN, ROW_PTR, SOURCE, TARGET, KNOT, PLACE, Z1, num_atoms,
    CHANNELS: tl.constexpr, DEGREE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Z1. A program takes ROWS rows and all channels."""
    first = tl.program_id(0) * ROWS
    count = tl.load(ROW_PTR + num_atoms)
    if first < num_atoms + count:
        row = first + tl.arange(0, ROWS)
        c = tl.arange(0, CHANNELS)[None, :]
        alone = row < num_atoms
        e = row - num_atoms
        edge = (e >= 0) & (e < count)
        knot = tl.load(KNOT + e, mask=edge, other=-1)
        inside = knot >= 0
        t = tl.load(PLACE + e.to(tl.int64) * 4 + 3, mask=inside, other=0.0)[:, None]
        entry = TABLE + knot.to(tl.int64)[:, None] * ((DEGREE + 1) * 3 * CHANNELS) + c
        z = filter_part(entry, 0, t, inside[:, None], CHANNELS, DEGREE)
        z = tl.where(alone[:, None], tl.load(OWN + c), z)
        i = tl.where(alone, row, tl.load(TARGET + e, mask=inside, other=0)).to(tl.int64)[:, None]
        j = tl.where(alone, row, tl.load(SOURCE + e, mask=inside, other=0)).to(tl.int64)[:, None]
        there = (alone | inside)[:, None]
        z += tl.load(SHARES + i * (2 * CHANNELS) + c, mask=there, other=0.0)
        z += tl.load(SHARES + j * (2 * CHANNELS) + CHANNELS + c, mask=there, other=0.0)
        tl.store(Z1 + row.to(tl.int64)[:, None] * CHANNELS + c, z, mask=there)


@triton.jit(do_not_specialize=["num_atoms", "start", "rows"])
def multiply_rows(
    X, W, SMALL, BIAS, Y, ACTED, ROW_PTR, num_atoms, start, rows,
    INNER: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
    ACTIVATION: tl.constexpr, BEFORE: tl.constexpr, KEEP: tl.constexpr, AFTER: tl.constexpr,
):  # fmt: skip
    """Y = x W + BIAS [WIDTH] if KEEP, and ACTED = act(x W + BIAS) if AFTER; x is act(X) if BEFORE, else X.

    X, Y, ACTED: `rows` rows of those of atoms and edges, from row `start` on. W is [WIDTH,INNER].
    """
    first, n, last = _tile(ROW_PTR, num_atoms, start, rows, WIDTH, ROWS, COLUMNS)
    if first < last:
        row = first + tl.arange(0, ROWS)
        valid = (row < last)[:, None]
        base = row.to(tl.int64)[:, None] * INNER
        acc = tl.zeros((ROWS, COLUMNS), tl.float32)
        for inner in range(0, INNER, STEP):
            k = inner + tl.arange(0, STEP)[None, :]
            x = tl.load(X + base + k, mask=valid, other=0.0)
            if BEFORE:
                x = activate(x, ACTIVATION)
            acc = product(acc, x, W, SMALL, n[:, None] * INNER + k)
        at = row.to(tl.int64)[:, None] * WIDTH + n[None, :]
        acc += tl.load(BIAS + n)[None, :]
        if KEEP:
            tl.store(Y + at, acc, mask=valid)
        if AFTER:
            tl.store(ACTED + at, activate(acc, ACTIVATION), mask=valid)


@triton.jit(do_not_specialize=["num_atoms", "start", "rows"])
def multiply_rows_back(
    X, W, SMALL, Y, ROW_PTR, num_atoms, start, rows,
    INNER: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
    ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Y becomes (X W) act'(Y); rows as above."""
    first, n, last = _tile(ROW_PTR, num_atoms, start, rows, WIDTH, ROWS, COLUMNS)
    if first < last:
        row = first + tl.arange(0, ROWS)
        valid = (row < last)[:, None]
        base = row.to(tl.int64)[:, None] * INNER
        acc = tl.zeros((ROWS, COLUMNS), tl.float32)
        for inner in range(0, INNER, STEP):
            k = inner + tl.arange(0, STEP)[None, :]
            x = tl.load(X + base + k, mask=valid, other=0.0)
            acc = product(acc, x, W, SMALL, n[:, None] * INNER + k)
        at = row.to(tl.int64)[:, None] * WIDTH + n[None, :]
        acc *= slope(tl.load(Y + at, mask=valid, other=0.0), ACTIVATION)
        tl.store(Y + at, acc, mask=valid)


@triton.jit
def _tile(ROW_PTR, num_atoms, start, rows, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """(first row, columns, end of the rows in use). Blocks of columns run side by side: X stays in the cache."""
    BLOCKS: tl.constexpr = WIDTH // COLUMNS
    last = tl.minimum(num_atoms + tl.load(ROW_PTR + num_atoms) - start, rows)
    columns = (tl.program_id(0) % BLOCKS) * COLUMNS + tl.arange(0, COLUMNS)
    return (tl.program_id(0) // BLOCKS) * ROWS, columns, last


@triton.jit(do_not_specialize=["num_atoms"])
def messages(
    Y, M, P, CHARGE, SYSTEM, Z3, ROW_PTR, SOURCE, KNOT, STRETCH, num_atoms, cutoff,
    CHANNELS: tl.constexpr, SLICE: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
    ACTIVATION: tl.constexpr, REFLECTIONS: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """M_i = Σ_j f_ij Y_j + f_ii Y_i, stored if KEEP, and P̂ = P/(|P|²+1) of its product P with Y_i.

    A program takes ROWS adjacent atoms and a slice of channels, DEPTH edges of each row at a time.
    """
    SLICES: tl.constexpr = CHANNELS // SLICE
    row = (tl.program_id(0) // SLICES) * ROWS + tl.arange(0, ROWS)
    c2 = ((tl.program_id(0) % SLICES) * SLICE + tl.arange(0, SLICE))[None, :]
    c = c2[:, None, :]
    start, end = row_ends(ROW_PTR, row, row < num_atoms)
    m = nine(tl.zeros((ROWS, SLICE), tl.float32))
    for step in range(0, tl.max(end - start, 0), DEPTH):
        e, mask = edges_at(start, end, step, DEPTH)
        within = tl.load(KNOT + e, mask=mask, other=-1) >= 0
        j = tl.load(SOURCE + e, mask=mask, other=0).to(tl.int64)[:, :, None]
        cut, _ = cosine_cut(STRETCH, e, within, cutoff)
        cut, inside = cut[:, :, None], within[:, :, None]
        # Every load before the first activation: they are waited for once.
        y = load9(Y + j * (9 * CHANNELS) + c, inside, CHANNELS)
        z0, z1, z2 = load3(Z3 + (num_atoms + e).to(tl.int64)[:, :, None] * (3 * CHANNELS) + c, inside, CHANNELS)
        f0, f1, f2 = activate(z0, ACTIVATION), activate(z1, ACTIVATION), activate(z2, ACTIVATION)
        m = add9(m, sum_edges(scale_parts(y, f0 * cut, f1 * cut, f2 * cut)))
    z0, z1, z2 = load3(Z3 + row.to(tl.int64)[:, None] * (3 * CHANNELS) + c2, (row < num_atoms)[:, None], CHANNELS)
    own = activate(z0, ACTIVATION), activate(z1, ACTIVATION), activate(z2, ACTIVATION)
    store_product(m, own, Y, M, P, CHARGE, SYSTEM, row, c2, num_atoms, CHANNELS, REFLECTIONS, KEEP)


@triton.jit(do_not_specialize=["num_atoms", "capacity"])
def messages_gradient(
    Y, GM, GY, Z3, ROW_PTR, SOURCE, REVERSE, KNOT, STRETCH, PULL, num_atoms, capacity, cutoff,
    CHANNELS: tl.constexpr, SLICE: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
    ACTIVATION: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """Adds Σ_j f_ji GM_j + f_ii GM_i to GY_i, and overwrites Z3 of every message from i with its gradient.

    The message from i to j uses the filter of the reverse edge, so each row of Z3 is read and written by one program,
    that of the source. PULL [slices,E], in the slot of the edge from j to i: the gradient in cut(r), converted to one
    in the table's variable, because both act along the edge.
    FIRST: PULL is written, not added to.
    """
    SLICES: tl.constexpr = CHANNELS // SLICE
    part = tl.program_id(0) % SLICES
    row = (tl.program_id(0) // SLICES) * ROWS + tl.arange(0, ROWS)
    c2 = (part * SLICE + tl.arange(0, SLICE))[None, :]
    c = c2[:, None, :]
    valid = (row < num_atoms)[:, None]
    start, end = row_ends(ROW_PTR, row, row < num_atoms)
    at = row.to(tl.int64)[:, None] * (9 * CHANNELS) + c2
    y = load9(Y + at, valid, CHANNELS)
    a = nine(tl.zeros((ROWS, SLICE), tl.float32))
    PULL += part.to(tl.int64) * capacity
    for step in range(0, tl.max(end - start, 0), DEPTH):
        e, mask = edges_at(start, end, step, DEPTH)
        within = tl.load(KNOT + e, mask=mask, other=-1) >= 0
        inside = within[:, :, None]
        j = tl.load(SOURCE + e, mask=mask, other=0).to(tl.int64)[:, :, None]
        back = num_atoms + tl.load(REVERSE + e, mask=mask, other=0).to(tl.int64)
        cut, dcut = cosine_cut(STRETCH, e, within, cutoff)
        cut2 = cut[:, :, None]
        z = Z3 + back[:, :, None] * (3 * CHANNELS) + c
        # Every load before the first store, behind which none would be moved.
        z0, z1, z2 = load3(z, inside, CHANNELS)
        gm = load9(GM + j * (9 * CHANNELS) + c, inside, CHANNELS)
        s0, s1, s2 = dot_parts(between(y), gm)
        f0, f1, f2 = activate(z0, ACTIVATION), activate(z1, ACTIVATION), activate(z2, ACTIVATION)
        pull = f0 * s0 + f1 * s1 + f2 * s2
        a = add9(a, sum_edges(scale_parts(gm, f0 * cut2, f1 * cut2, f2 * cut2)))
        s0, s1, s2 = s0 * slope(z0, ACTIVATION), s1 * slope(z1, ACTIVATION), s2 * slope(z2, ACTIVATION)
        store3(z, (s0 * cut2, s1 * cut2, s2 * cut2), inside, CHANNELS)
        per_place = tl.load(STRETCH + e.to(tl.int64) * 2, mask=within, other=1.0)
        total = tl.sum(pull, 2) * dcut / per_place
        if not FIRST:
            total += tl.load(PULL + e, mask=mask, other=0.0)
        tl.store(PULL + e, total, mask=mask)
    gm = load9(GM + at, valid, CHANNELS)
    z = Z3 + row.to(tl.int64)[:, None] * (3 * CHANNELS) + c2
    z0, z1, z2 = load3(z, valid, CHANNELS)
    s0, s1, s2 = dot_parts(y, gm)
    s0, s1, s2 = s0 * slope(z0, ACTIVATION), s1 * slope(z1, ACTIVATION), s2 * slope(z2, ACTIVATION)
    store3(z, (s0, s1, s2), valid, CHANNELS)
    own = scale_parts(gm, activate(z0, ACTIVATION), activate(z1, ACTIVATION), activate(z2, ACTIVATION))
    gy = add9(load9(GY + at, valid, CHANNELS), add9(a, own))
    store9(GY + at, gy, valid, CHANNELS)


@triton.jit(do_not_specialize=["num_atoms", "capacity"])
def first_gradient(
    Z1, SHARES, TABLE, ROW_PTR, SOURCE, REVERSE, KNOT, PLACE, PULL, num_atoms, capacity,
    CHANNELS: tl.constexpr, DEGREE: tl.constexpr, SLICE: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """SHARES: sums of the gradient in Z1 over the edges to an atom and from it; adds that through a(r) to PULL."""
    SLICES: tl.constexpr = CHANNELS // SLICE
    part = tl.program_id(0) % SLICES
    row = (tl.program_id(0) // SLICES) * ROWS + tl.arange(0, ROWS)
    c2 = (part * SLICE + tl.arange(0, SLICE))[None, :]
    c = c2[:, None, :]
    valid = (row < num_atoms)[:, None]
    start, end = row_ends(ROW_PTR, row, row < num_atoms)
    as_target = tl.load(Z1 + row.to(tl.int64)[:, None] * CHANNELS + c2, mask=valid, other=0.0)
    as_source = as_target
    PULL += part.to(tl.int64) * capacity
    for step in range(0, tl.max(end - start, 0), DEPTH):
        e, mask = edges_at(start, end, step, DEPTH)
        inside, _, entry, t = read_edge(e, mask, KNOT, SOURCE, PLACE, TABLE, c, CHANNELS, DEGREE)
        back = num_atoms + tl.load(REVERSE + e, mask=mask, other=0).to(tl.int64)
        g = tl.load(Z1 + (num_atoms + e).to(tl.int64)[:, :, None] * CHANNELS + c, mask=inside, other=0.0)
        of_source = tl.load(Z1 + back[:, :, None] * CHANNELS + c, mask=inside, other=0.0)
        pull = tl.load(PULL + e, mask=mask, other=0.0)
        _, da = filter_and_slope(entry, 0, t, inside, CHANNELS, DEGREE)
        as_target += tl.sum(g, 1)
        as_source += tl.sum(of_source, 1)
        tl.store(PULL + e, pull + tl.sum(g * da, 2), mask=mask)
    out = SHARES + row.to(tl.int64)[:, None] * (2 * CHANNELS) + c2
    tl.store(out, as_target, mask=valid)
    tl.store(out + CHANNELS, as_source, mask=valid)
