"""Messages between neighbours, M_i = Σ_j f(r_ij) Y_j + f(0) Y_i, their product with Y, and the gradients.

Forward and backward pass gather the neighbour's tensor once each.

A program takes ROWS adjacent atoms and a slice of SLICE channels, and walks the rows together, DEPTH edges of each at
a time: blocks are [ROWS, DEPTH, SLICE]. Features of an edge exist in registers only.
"""

import triton
import triton.language as tl

from torchmdx.engines.gpu.triton.edge_walk import (
    add_and_dot_symmetric,
    add_and_dot_vector,
    add_scalar,
    add_symmetric,
    add_vector,
    dot,
    edges_at,
    filter_and_slope,
    filter_part,
    read_edge,
    row_ends,
)
from torchmdx.engines.gpu.triton.nine import (
    add9,
    charge_factor,
    load3,
    load9,
    message_product,
    normalise,
    scale_parts,
    store9,
)


@triton.jit(do_not_specialize=["num_atoms", "first", "window"])
def messages(
    Y,
    ALL_Y,
    M,
    P,
    CHARGE,
    SYSTEM,
    TABLE,
    OWN,
    ROW_PTR,
    SOURCE,
    KNOT,
    PLACE,
    num_atoms,
    first,
    window,
    CHANNELS: tl.constexpr,
    DEGREE: tl.constexpr,
    SLICE: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    SLICES_FIRST: tl.constexpr,
    WINDOWED: tl.constexpr,
    REFLECTIONS: tl.constexpr,
    KEEP: tl.constexpr,
):
    """M_i = Σ_j f(r_ij) Y_j + f(0) Y_i, stored if KEEP, and P̂ = P/(|P|²+1) of its product P with Y_i.

    Args:
        ALL_Y: Y of the atoms that SOURCE counts: the same tensor, or if WINDOWED a window (slabs.py) with room for so
            many atoms, of which `first` is the first one of a round before all sources.
    """
    if num_atoms.dtype.is_ptr():
        tl.static_assert(SLICES_FIRST)
        num_atoms = tl.load(num_atoms)
        if tl.program_id(0) // (CHANNELS // SLICE) * ROWS >= num_atoms:
            return
    group, part = _where(num_atoms, ROWS, CHANNELS // SLICE, SLICES_FIRST)
    row = group * ROWS + tl.arange(0, ROWS)
    c = (part * SLICE + tl.arange(0, SLICE))[None, None, :]
    start, end = row_ends(ROW_PTR, row, row < num_atoms)
    m0 = tl.zeros((ROWS, SLICE), tl.float32)
    m1, m2, m3, m4, m5, m6, m7, m8 = m0, m0, m0, m0, m0, m0, m0, m0
    for step in range(0, tl.max(end - start, 0), DEPTH):
        e, mask = edges_at(start, end, step, DEPTH)
        inside, j, entry, t = read_edge(e, mask, KNOT, SOURCE, PLACE, TABLE, c, CHANNELS, DEGREE)
        if WINDOWED:
            j = _in_window(j, first, window)
        y = ALL_Y + j[:, :, None] * (9 * CHANNELS) + c
        f = filter_part(entry, 0, t, inside, CHANNELS, DEGREE)
        m0 = add_scalar(m0, f, y, inside)
        f = filter_part(entry, 1, t, inside, CHANNELS, DEGREE)
        m1, m2, m3 = add_vector(m1, m2, m3, f, y, inside, CHANNELS)
        f = filter_part(entry, 2, t, inside, CHANNELS, DEGREE)
        m4, m5, m6, m7, m8 = add_symmetric(m4, m5, m6, m7, m8, f, y, inside, CHANNELS)
    c = (part * SLICE + tl.arange(0, SLICE))[None, :]
    own = load3(OWN + c, None, CHANNELS)
    store_product(
        (m0, m1, m2, m3, m4, m5, m6, m7, m8),
        own,
        Y,
        M,
        P,
        CHARGE,
        SYSTEM,
        row,
        c,
        num_atoms,
        CHANNELS,
        REFLECTIONS,
        KEEP,
    )


@triton.jit
def _in_window(j, first, window):
    """Places of atoms in a window, in which they take turns; they are in this round or the next."""
    j -= first
    return tl.where(j >= window, j - window, j)


@triton.jit
def store_product(
    m, own, Y, M, P, CHARGE, SYSTEM, row, c, num_atoms,
    CHANNELS: tl.constexpr, REFLECTIONS: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """M from the sums m over neighbours and the message of an atom to itself, whose filters are own; and P̂."""
    mask = (row < num_atoms)[:, None]
    at = row.to(tl.int64)[:, None] * (9 * CHANNELS) + c
    y = load9(Y + at, mask, CHANNELS)
    m = add9(m, scale_parts(y, own[0], own[1], own[2]))
    if KEEP:
        store9(M + at, m, mask, CHANNELS)
    factor = charge_factor(CHARGE, SYSTEM, row, row < num_atoms)
    store9(P + at, normalise(message_product(y, m, factor, REFLECTIONS)), mask, CHANNELS)


@triton.jit
def _where(num_atoms, ROWS: tl.constexpr, SLICES: tl.constexpr, SLICES_FIRST: tl.constexpr):
    """(group of rows, slice of channels) of this program. With SLICES_FIRST the slices of a group run side by side."""
    if SLICES_FIRST:
        group, part = tl.program_id(0) // SLICES, tl.program_id(0) % SLICES
    else:
        groups = tl.cdiv(num_atoms, ROWS)
        group, part = tl.program_id(0) % groups, tl.program_id(0) // groups
    return group, part


@triton.jit(do_not_specialize=["num_atoms", "num_received", "capacity", "first", "window"])
def messages_gradient(
    Y,
    GM,
    ALL_GM,
    GY,
    TABLE,
    OWN,
    ROW_PTR,
    SOURCE,
    KNOT,
    PLACE,
    PULL,
    num_atoms,
    num_received,
    capacity,
    first,
    window,
    CHANNELS: tl.constexpr,
    DEGREE: tl.constexpr,
    SLICE: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    SLICES_FIRST: tl.constexpr,
    WINDOWED: tl.constexpr,
    FIRST: tl.constexpr,
):
    """Adds Σ_j f(r_ij) GM_j + f(0) GM_i to GY_i, and Σ_c f'(t) (Y_i · GM_j) of this slice to PULL [slices, E].

    The list is symmetric, so what flows back from the messages that i sent is again a sum over its own row. The pull is
    that of the message from i to j: the one of the message from j to i is found in the row of j. FIRST: PULL is
    written, not added to.

    Args:
        ALL_GM: GM of the atoms that SOURCE counts, as ALL_Y of `messages`.
        num_received: Atoms that received messages; GM, GY and PULL are theirs, and zero for later atoms.
    """
    if num_atoms.dtype.is_ptr():
        tl.static_assert(SLICES_FIRST)
        num_atoms = tl.load(num_atoms)
        if tl.program_id(0) // (CHANNELS // SLICE) * ROWS >= num_atoms:
            return
    group, part = _where(num_atoms, ROWS, CHANNELS // SLICE, SLICES_FIRST)
    row = group * ROWS + tl.arange(0, ROWS)
    c2 = (part * SLICE + tl.arange(0, SLICE))[None, :]
    c = c2[:, None, :]
    valid = (row < num_atoms)[:, None]
    PARTIAL: tl.constexpr = num_received.dtype.is_ptr()
    received = valid
    if PARTIAL:
        num_received = tl.load(num_received)
        received = (row < num_received)[:, None]
    start, end = row_ends(ROW_PTR, row, row < num_atoms)
    at = row.to(tl.int64)[:, None] * (9 * CHANNELS) + c2
    y = load9(Y + at, valid, CHANNELS)
    a0 = tl.zeros((ROWS, SLICE), tl.float32)
    a1, a2, a3, a4, a5, a6, a7, a8 = a0, a0, a0, a0, a0, a0, a0, a0
    PULL += part.to(tl.int64) * capacity
    for step in range(0, tl.max(end - start, 0), DEPTH):
        e, mask = edges_at(start, end, step, DEPTH)
        inside, j, entry, t = read_edge(e, mask, KNOT, SOURCE, PLACE, TABLE, c, CHANNELS, DEGREE)
        if PARTIAL:
            inside = inside & (j < num_received)[:, :, None]
        if WINDOWED:
            j = _in_window(j, first, window)
        gm = ALL_GM + j[:, :, None] * (9 * CHANNELS) + c
        f, df = filter_and_slope(entry, 0, t, inside, CHANNELS, DEGREE)
        a0, s = dot(a0, f, y[0], gm, inside)
        pull = df * s
        f, df = filter_and_slope(entry, 1, t, inside, CHANNELS, DEGREE)
        a1, a2, a3, s = add_and_dot_vector(a1, a2, a3, f, y, gm, inside, CHANNELS)
        pull += df * s
        f, df = filter_and_slope(entry, 2, t, inside, CHANNELS, DEGREE)
        a4, a5, a6, a7, a8, s = add_and_dot_symmetric(a4, a5, a6, a7, a8, f, y, gm, inside, CHANNELS)
        pull += df * s
        total = tl.sum(pull, 2)
        if not FIRST:
            total += tl.load(PULL + e, mask=mask & received, other=0.0)
        tl.store(PULL + e, total, mask=mask)
    f0, f1, f2 = load3(OWN + c2, None, CHANNELS)
    own = scale_parts(load9(GM + at, received, CHANNELS), f0, f1, f2)
    gy = add9(load9(GY + at, received, CHANNELS), add9((a0, a1, a2, a3, a4, a5, a6, a7, a8), own))
    store9(GY + at, gy, valid, CHANNELS)
