"""Messages between neighbours, M_i = Σ_j f(r_ij) Y_j + f(0) Y_i, what becomes of them, and their gradients.

Each direction takes one gather of the neighbour's tensor.

A program takes ROWS adjacent atoms and a slice of SLICE channels, and walks the rows together, DEPTH edges of each at
a time: blocks are [ROWS, DEPTH, SLICE]. Features of an edge exist in registers only.
"""

import triton
import triton.language as tl

from torchmdx.models.kernels.components import (
    add9,
    charge_factor,
    load9,
    message_product,
    normalise,
    scale_parts,
    store9,
)


@triton.jit
def filter_part(entry, part: tl.constexpr, t, mask, channels: tl.constexpr, degree: tl.constexpr):
    """Σ_q a_q t^q of one part from the table's interval at `entry`, laid out [degree+1,3,channels]."""
    entry += part * channels
    value = tl.load(entry + degree * 3 * channels, mask=mask, other=0.0)
    for q in tl.static_range(1, degree + 1):
        value = value * t + tl.load(entry + (degree - q) * 3 * channels, mask=mask, other=0.0)
    return value


@triton.jit
def filter_and_slope(entry, part: tl.constexpr, t, mask, channels: tl.constexpr, degree: tl.constexpr):
    """The filter and its slope in t, the derivative of the same polynomial."""
    entry += part * channels
    slope = tl.load(entry + degree * 3 * channels, mask=mask, other=0.0)
    value = slope * t + tl.load(entry + (degree - 1) * 3 * channels, mask=mask, other=0.0)
    for q in tl.static_range(2, degree + 1):
        slope = slope * t + value
        value = value * t + tl.load(entry + (degree - q) * 3 * channels, mask=mask, other=0.0)
    return value, slope


@triton.jit(do_not_specialize=["num_atoms"])
def messages(
    Y,
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
    CHANNELS: tl.constexpr,
    DEGREE: tl.constexpr,
    SLICE: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    SLICES_FIRST: tl.constexpr,
    REFLECTIONS: tl.constexpr,
    KEEP: tl.constexpr,
):
    """M_i = Σ_j f(r_ij) Y_j + f(0) Y_i, stored if KEEP, and P̂ = P/(|P|²+1) of its product P with Y_i."""
    group, part = _where(num_atoms, ROWS, CHANNELS // SLICE, SLICES_FIRST)
    row = group * ROWS + tl.arange(0, ROWS)
    c = (part * SLICE + tl.arange(0, SLICE))[None, None, :]
    start = tl.load(ROW_PTR + row, mask=row < num_atoms, other=0)
    end = tl.load(ROW_PTR + row + 1, mask=row < num_atoms, other=0)
    depth = tl.arange(0, DEPTH)[None, :]
    m0 = tl.zeros((ROWS, SLICE), tl.float32)
    m1, m2, m3, m4, m5, m6, m7, m8 = m0, m0, m0, m0, m0, m0, m0, m0
    for step in range(0, tl.max(end - start, 0), DEPTH):
        e = (start + step)[:, None] + depth
        mask = e < end[:, None]
        knot = tl.load(KNOT + e, mask=mask, other=-1)
        j = tl.load(SOURCE + e, mask=mask, other=0).to(tl.int64)[:, :, None]
        t = tl.load(PLACE + e.to(tl.int64) * 4 + 3, mask=mask, other=0.0)[:, :, None]
        inside = (knot >= 0)[:, :, None]
        entry = TABLE + knot.to(tl.int64)[:, :, None] * ((DEGREE + 1) * 3 * CHANNELS) + c
        y = Y + j * (9 * CHANNELS) + c
        f = filter_part(entry, 0, t, inside, CHANNELS, DEGREE)
        m0 += tl.sum(f * tl.load(y, mask=inside, other=0.0), 1)
        f = filter_part(entry, 1, t, inside, CHANNELS, DEGREE)
        m1 += tl.sum(f * tl.load(y + CHANNELS, mask=inside, other=0.0), 1)
        m2 += tl.sum(f * tl.load(y + 2 * CHANNELS, mask=inside, other=0.0), 1)
        m3 += tl.sum(f * tl.load(y + 3 * CHANNELS, mask=inside, other=0.0), 1)
        f = filter_part(entry, 2, t, inside, CHANNELS, DEGREE)
        m4 += tl.sum(f * tl.load(y + 4 * CHANNELS, mask=inside, other=0.0), 1)
        m5 += tl.sum(f * tl.load(y + 5 * CHANNELS, mask=inside, other=0.0), 1)
        m6 += tl.sum(f * tl.load(y + 6 * CHANNELS, mask=inside, other=0.0), 1)
        m7 += tl.sum(f * tl.load(y + 7 * CHANNELS, mask=inside, other=0.0), 1)
        m8 += tl.sum(f * tl.load(y + 8 * CHANNELS, mask=inside, other=0.0), 1)
    c = (part * SLICE + tl.arange(0, SLICE))[None, :]
    mask = (row < num_atoms)[:, None]
    at = row.to(tl.int64)[:, None] * (9 * CHANNELS) + c
    y = load9(Y + at, mask, CHANNELS)
    f0, f1, f2 = tl.load(OWN + c), tl.load(OWN + CHANNELS + c), tl.load(OWN + 2 * CHANNELS + c)
    m = add9((m0, m1, m2, m3, m4, m5, m6, m7, m8), scale_parts(y, f0, f1, f2))
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


@triton.jit(do_not_specialize=["num_atoms", "capacity"])
def messages_gradient(
    Y,
    GM,
    GY,
    TABLE,
    OWN,
    ROW_PTR,
    SOURCE,
    KNOT,
    PLACE,
    PULL,
    num_atoms,
    capacity,
    CHANNELS: tl.constexpr,
    DEGREE: tl.constexpr,
    SLICE: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    SLICES_FIRST: tl.constexpr,
    FIRST: tl.constexpr,
):
    """Adds Σ_j f(r_ij) GM_j + f(0) GM_i to GY_i, and Σ_c f'(t) (Y_i · GM_j) of this slice to PULL [slices, E].

    The list is symmetric, so what flows back from the messages that i sent is again a sum over its own row. The pull
    is that of the message from i to j: the one of the message from j to i is found in the row of j.
    FIRST: PULL is written, not added to.
    """
    group, part = _where(num_atoms, ROWS, CHANNELS // SLICE, SLICES_FIRST)
    row = group * ROWS + tl.arange(0, ROWS)
    c2 = (part * SLICE + tl.arange(0, SLICE))[None, :]
    c = c2[:, None, :]
    valid = (row < num_atoms)[:, None]
    start = tl.load(ROW_PTR + row, mask=row < num_atoms, other=0)
    end = tl.load(ROW_PTR + row + 1, mask=row < num_atoms, other=0)
    depth = tl.arange(0, DEPTH)[None, :]
    at = row.to(tl.int64)[:, None] * (9 * CHANNELS) + c2
    y = load9(Y + at, valid, CHANNELS)
    a0 = tl.zeros((ROWS, SLICE), tl.float32)
    a1, a2, a3, a4, a5, a6, a7, a8 = a0, a0, a0, a0, a0, a0, a0, a0
    PULL += part.to(tl.int64) * capacity
    for step in range(0, tl.max(end - start, 0), DEPTH):
        e = (start + step)[:, None] + depth
        mask = e < end[:, None]
        knot = tl.load(KNOT + e, mask=mask, other=-1)
        j = tl.load(SOURCE + e, mask=mask, other=0).to(tl.int64)[:, :, None]
        t = tl.load(PLACE + e.to(tl.int64) * 4 + 3, mask=mask, other=0.0)[:, :, None]
        inside = (knot >= 0)[:, :, None]
        entry = TABLE + knot.to(tl.int64)[:, :, None] * ((DEGREE + 1) * 3 * CHANNELS) + c
        gm = GM + j * (9 * CHANNELS) + c
        f, df = filter_and_slope(entry, 0, t, inside, CHANNELS, DEGREE)
        g = tl.load(gm, mask=inside, other=0.0)
        a0 += tl.sum(f * g, 1)
        pull = df * (y[0][:, None, :] * g)
        f, df = filter_and_slope(entry, 1, t, inside, CHANNELS, DEGREE)
        g = tl.load(gm + CHANNELS, mask=inside, other=0.0)
        a1 += tl.sum(f * g, 1)
        s = y[1][:, None, :] * g
        g = tl.load(gm + 2 * CHANNELS, mask=inside, other=0.0)
        a2 += tl.sum(f * g, 1)
        s += y[2][:, None, :] * g
        g = tl.load(gm + 3 * CHANNELS, mask=inside, other=0.0)
        a3 += tl.sum(f * g, 1)
        s += y[3][:, None, :] * g
        pull += df * s
        f, df = filter_and_slope(entry, 2, t, inside, CHANNELS, DEGREE)
        g = tl.load(gm + 4 * CHANNELS, mask=inside, other=0.0)
        a4 += tl.sum(f * g, 1)
        s = y[4][:, None, :] * g
        g = tl.load(gm + 5 * CHANNELS, mask=inside, other=0.0)
        a5 += tl.sum(f * g, 1)
        s += y[5][:, None, :] * g
        g = tl.load(gm + 6 * CHANNELS, mask=inside, other=0.0)
        a6 += tl.sum(f * g, 1)
        s += y[6][:, None, :] * g
        g = tl.load(gm + 7 * CHANNELS, mask=inside, other=0.0)
        a7 += tl.sum(f * g, 1)
        s += y[7][:, None, :] * g
        g = tl.load(gm + 8 * CHANNELS, mask=inside, other=0.0)
        a8 += tl.sum(f * g, 1)
        s += y[8][:, None, :] * g
        pull += df * s
        total = tl.sum(pull, 2)
        if not FIRST:
            total += tl.load(PULL + e, mask=mask, other=0.0)
        tl.store(PULL + e, total, mask=mask)
    f0, f1, f2 = tl.load(OWN + c2), tl.load(OWN + CHANNELS + c2), tl.load(OWN + 2 * CHANNELS + c2)
    own = scale_parts(load9(GM + at, valid, CHANNELS), f0, f1, f2)
    gy = add9(load9(GY + at, valid, CHANNELS), add9((a0, a1, a2, a3, a4, a5, a6, a7, a8), own))
    store9(GY + at, gy, valid, CHANNELS)
