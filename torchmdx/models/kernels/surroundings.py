"""The embedding's sum over neighbours, A_i = Σ_j f(r_ij) Z_ij (1, d, d dᵀ - 1/3) + f(0) Z_ii, and its gradient.

Z_ij = U[Z_i] + V[Z_j] is linear in the embeddings of both elements: TARGETS = U and SOURCES = V [elements, C] are
tables, small enough to stay in cache, so that nothing of a neighbour is gathered.
"""

import triton
import triton.language as tl

from torchmdx.models.kernels.messages import filter_and_slope, filter_part


@triton.jit(do_not_specialize=["num_atoms"])
def surroundings(
    NUMBERS,
    TARGETS,
    SOURCES,
    A,
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
):
    """A [N,9,C]. A program takes ROWS adjacent atoms and SLICE channels, DEPTH edges of each row at a time."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c2 = (tl.program_id(1) * SLICE + tl.arange(0, SLICE))[None, :]
    c = c2[:, None, :]
    valid = row < num_atoms
    start = tl.load(ROW_PTR + row, mask=valid, other=0)
    end = tl.load(ROW_PTR + row + 1, mask=valid, other=0)
    depth = tl.arange(0, DEPTH)[None, :]
    element = tl.load(NUMBERS + row, mask=valid, other=0)[:, None]
    target = tl.load(TARGETS + element * CHANNELS + c2)
    a0 = tl.zeros((ROWS, SLICE), tl.float32)
    a1, a2, a3, a4, a5, a6, a7, a8 = a0, a0, a0, a0, a0, a0, a0, a0
    for step in range(0, tl.max(end - start, 0), DEPTH):
        e = (start + step)[:, None] + depth
        mask = e < end[:, None]
        knot = tl.load(KNOT + e, mask=mask, other=-1)
        j = tl.load(SOURCE + e, mask=mask, other=0)
        place = PLACE + e.to(tl.int64) * 4
        x = tl.load(place, mask=mask, other=0.0)[:, :, None]
        y = tl.load(place + 1, mask=mask, other=0.0)[:, :, None]
        z = tl.load(place + 2, mask=mask, other=0.0)[:, :, None]
        t = tl.load(place + 3, mask=mask, other=0.0)[:, :, None]
        inside = (knot >= 0)[:, :, None]
        entry = TABLE + knot.to(tl.int64)[:, :, None] * ((DEGREE + 1) * 3 * CHANNELS) + c
        other = tl.load(NUMBERS + j, mask=mask, other=0)[:, :, None]
        pair = target[:, None, :] + tl.load(SOURCES + other * CHANNELS + c, mask=inside, other=0.0)
        a0 += tl.sum(filter_part(entry, 0, t, inside, CHANNELS, DEGREE) * pair, 1)
        f = filter_part(entry, 1, t, inside, CHANNELS, DEGREE) * pair
        a1 += tl.sum(f * x, 1)
        a2 += tl.sum(f * y, 1)
        a3 += tl.sum(f * z, 1)
        f = filter_part(entry, 2, t, inside, CHANNELS, DEGREE) * pair
        a4 += tl.sum(f * (x * x - 0.3333333333333333), 1)
        a5 += tl.sum(f * (x * y), 1)
        a6 += tl.sum(f * (x * z), 1)
        a7 += tl.sum(f * (y * y - 0.3333333333333333), 1)
        a8 += tl.sum(f * (y * z), 1)
    # Alone in the message to itself, an atom has no direction: only the scalar part sees it.
    a0 += tl.load(OWN + c2) * (target + tl.load(SOURCES + element * CHANNELS + c2))
    out = A + row.to(tl.int64)[:, None] * (9 * CHANNELS) + c2
    mask = valid[:, None]
    tl.store(out, a0, mask=mask)
    tl.store(out + CHANNELS, a1, mask=mask)
    tl.store(out + 2 * CHANNELS, a2, mask=mask)
    tl.store(out + 3 * CHANNELS, a3, mask=mask)
    tl.store(out + 4 * CHANNELS, a4, mask=mask)
    tl.store(out + 5 * CHANNELS, a5, mask=mask)
    tl.store(out + 6 * CHANNELS, a6, mask=mask)
    tl.store(out + 7 * CHANNELS, a7, mask=mask)
    tl.store(out + 8 * CHANNELS, a8, mask=mask)


@triton.jit(do_not_specialize=["num_atoms", "capacity"])
def surroundings_gradient(
    NUMBERS,
    TARGETS,
    SOURCES,
    GA,
    TABLE,
    ROW_PTR,
    SOURCE,
    KNOT,
    PLACE,
    STRETCH,
    PULL,
    HALF,
    num_atoms,
    capacity,
    CHANNELS: tl.constexpr,
    DEGREE: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    SLICES: tl.constexpr,
):
    """h_e = (Σ_slices PULL + ∂E/∂t) dx/dr d + (1 - d dᵀ)/r ∂E/∂d: all that row i knows of an edge's gradient.

    ∂E/∂t and ∂E/∂d are those of A_i; PULL [SLICES,E] is what the layers' messages left.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c2 = tl.arange(0, CHANNELS)[None, :]
    c = c2[:, None, :]
    valid = row < num_atoms
    start = tl.load(ROW_PTR + row, mask=valid, other=0)
    end = tl.load(ROW_PTR + row + 1, mask=valid, other=0)
    depth = tl.arange(0, DEPTH)[None, :]
    element = tl.load(NUMBERS + row, mask=valid, other=0)[:, None]
    target = tl.load(TARGETS + element * CHANNELS + c2)[:, None, :]
    ga = GA + row.to(tl.int64)[:, None] * (9 * CHANNELS) + c2
    keep = valid[:, None]
    g0 = tl.load(ga, mask=keep, other=0.0)[:, None, :]
    g1 = tl.load(ga + CHANNELS, mask=keep, other=0.0)[:, None, :]
    g2 = tl.load(ga + 2 * CHANNELS, mask=keep, other=0.0)[:, None, :]
    g3 = tl.load(ga + 3 * CHANNELS, mask=keep, other=0.0)[:, None, :]
    g4 = tl.load(ga + 4 * CHANNELS, mask=keep, other=0.0)[:, None, :]
    g5 = tl.load(ga + 5 * CHANNELS, mask=keep, other=0.0)[:, None, :]
    g6 = tl.load(ga + 6 * CHANNELS, mask=keep, other=0.0)[:, None, :]
    g7 = tl.load(ga + 7 * CHANNELS, mask=keep, other=0.0)[:, None, :]
    g8 = tl.load(ga + 8 * CHANNELS, mask=keep, other=0.0)[:, None, :]
    third = (g4 + g7) * 0.3333333333333333
    for step in range(0, tl.max(end - start, 0), DEPTH):
        e = (start + step)[:, None] + depth
        mask = e < end[:, None]
        knot = tl.load(KNOT + e, mask=mask, other=-1)
        j = tl.load(SOURCE + e, mask=mask, other=0)
        place = PLACE + e.to(tl.int64) * 4
        dx = tl.load(place, mask=mask, other=0.0)
        dy = tl.load(place + 1, mask=mask, other=0.0)
        dz = tl.load(place + 2, mask=mask, other=0.0)
        x, y, z = dx[:, :, None], dy[:, :, None], dz[:, :, None]
        t = tl.load(place + 3, mask=mask, other=0.0)[:, :, None]
        stretch = tl.load(STRETCH + e.to(tl.int64) * 2, mask=mask, other=0.0)
        inverse = tl.load(STRETCH + e.to(tl.int64) * 2 + 1, mask=mask, other=0.0)
        pull = tl.load(PULL + e, mask=mask, other=0.0)
        for part in tl.static_range(1, SLICES):
            pull += tl.load(PULL + part * capacity.to(tl.int64) + e, mask=mask, other=0.0)
        inside = (knot >= 0)[:, :, None]
        entry = TABLE + knot.to(tl.int64)[:, :, None] * ((DEGREE + 1) * 3 * CHANNELS) + c
        other = tl.load(NUMBERS + j, mask=mask, other=0)[:, :, None]
        pair = target + tl.load(SOURCES + other * CHANNELS + c, mask=inside, other=0.0)
        f, along = filter_and_slope(entry, 0, t, inside, CHANNELS, DEGREE)
        along = along * g0
        f, df = filter_and_slope(entry, 1, t, inside, CHANNELS, DEGREE)
        along += df * (g1 * x + g2 * y + g3 * z)
        vx, vy, vz = f * g1, f * g2, f * g3
        f, df = filter_and_slope(entry, 2, t, inside, CHANNELS, DEGREE)
        # Half the gradient of dᵀ G d: twice contracted with d it is the value itself.
        qx = g4 * x + 0.5 * (g5 * y + g6 * z)
        qy = g7 * y + 0.5 * (g5 * x + g8 * z)
        qz = 0.5 * (g6 * x + g8 * y)
        along += df * (qx * x + qy * y + qz * z - third)
        vx += 2.0 * f * qx
        vy += 2.0 * f * qy
        vz += 2.0 * f * qz
        pull += tl.sum(along * pair, 2)
        sx = tl.sum(vx * pair, 2)
        sy = tl.sum(vy * pair, 2)
        sz = tl.sum(vz * pair, 2)
        radial = pull * stretch - (sx * dx + sy * dy + sz * dz) * inverse
        half = HALF + e.to(tl.int64) * 3
        tl.store(half, radial * dx + sx * inverse, mask=mask)
        tl.store(half + 1, radial * dy + sy * inverse, mask=mask)
        tl.store(half + 2, radial * dz + sz * inverse, mask=mask)
