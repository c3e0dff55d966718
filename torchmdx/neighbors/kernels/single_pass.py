"""All pairs of small systems, in one kernel: count, look back, fill."""

import triton
import triton.language as tl

from torchmdx.neighbors.kernels.look_back import (
    fractional,
    has_place,
    inverse,
    length,
    nearest,
    offset_of_tile,
    pad,
    report,
    take_ticket,
    total_of_tiles,
    usable,
    whole_cell,
)


@triton.jit
def wrapped(POSITIONS, atom, mask, ux, uy, uz, vx, vy, vz, wx, wy, wz, p0, p1, p2, TYPE: tl.constexpr):
    """(fractional coordinates in TYPE, images int32, fit) of atoms; NaN for those without usable coordinates."""
    at = POSITIONS + atom.to(tl.int64) * 3
    x = tl.load(at, mask=mask, other=0.0).to(tl.float64)
    y = tl.load(at + 1, mask=mask, other=0.0).to(tl.float64)
    z = tl.load(at + 2, mask=mask, other=0.0).to(tl.float64)
    f0, m0 = fractional(x, y, z, ux, uy, uz, p0)
    f1, m1 = fractional(x, y, z, vx, vy, vz, p1)
    f2, m2 = fractional(x, y, z, wx, wy, wz, p2)
    fit = has_place(f0, m0) & has_place(f1, m1) & has_place(f2, m2)
    f0 = tl.where(fit, f0, float("nan")).to(TYPE)
    f1 = tl.where(fit, f1, float("nan")).to(TYPE)
    f2 = tl.where(fit, f2, float("nan")).to(TYPE)
    m0 = tl.where(fit, m0, 0.0).to(tl.int32)
    m1 = tl.where(fit, m1, 0.0).to(tl.int32)
    m2 = tl.where(fit, m2, 0.0).to(tl.int32)
    return f0, f1, f2, m0, m1, m2, fit


@triton.jit
def image_number(m, images, r0, r1, r2):
    """Translations along each direction of image number m."""
    m0, m1, m2 = r0 * 0, r0 * 0, r0 * 0
    if images > 1:  # divisions are slow
        m0 = m % (2 * r0 + 1) - r0
        m1 = (m // (2 * r0 + 1)) % (2 * r1 + 1) - r1
        m2 = m // ((2 * r0 + 1) * (2 * r1 + 1)) - r2
    return m0, m1, m2


@triton.jit
def candidate(k, first, images, r0, r1, r2):
    """Atom and translations of candidate k of a row, counted from `first`: all images of an atom, then of the next."""
    m = (k - first) % images
    width, height = 2 * r0 + 1, 2 * r1 + 1
    return first + (k - first) // images, m % width - r0, (m // width) % height - r1, m // (width * height) - r2


@triton.jit(do_not_specialize=["capacity", "tiles", "num_atoms"])
def brute_force(
    POSITIONS,
    CELL,
    PBC,
    TILES,
    ROW_PTR,
    SOURCE,
    TARGET,
    SHIFTS,
    NUM_EDGES,
    NEEDED,
    OVERFLOW,
    INVALID,
    ACTIVE,
    UPDATES,
    TICKET,
    WORDS,
    FLAWS,
    REFERENCE,
    REFERENCE_CELL,
    LIMITS,
    capacity,
    tiles,
    num_atoms,
    TYPE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PADDERS: tl.constexpr,
    WINDOW: tl.constexpr,
    SKIN: tl.constexpr,
    IMAGES: tl.constexpr,
):
    """TILES [T,5]: system, first and end row, first and end atom of the system.

    FLAWS int32 [2], one per parity of the launch. Grid: tiles + PADDERS. IMAGES: columns are images of atoms, for few
    atoms with many; else atoms, whose images are taken in turn.
    """
    if SKIN:
        if tl.load(ACTIVE) == 0:
            return
    tile, launch = take_ticket(TICKET, tiles + PADDERS)
    if tile >= tiles:
        total = total_of_tiles(WORDS, tiles, launch)
        pad(SOURCE, TARGET, SHIFTS, total, capacity, tile - tiles, PADDERS, COLUMNS, num_atoms)
        if tile == tiles + PADDERS - 1:
            invalid = tl.atomic_xchg(FLAWS + launch % 2, 0, sem="acq_rel")
            report(NUM_EDGES, NEEDED, OVERFLOW, INVALID, ACTIVE, UPDATES, total, invalid, capacity)
            tl.store(ROW_PTR + num_atoms, tl.minimum(total, capacity).to(tl.int32))
        return
    system = tl.load(TILES + tile * 5)
    row_end = tl.load(TILES + tile * 5 + 2)
    first = tl.load(TILES + tile * 5 + 3)
    end = tl.load(TILES + tile * 5 + 4)
    row = tl.load(TILES + tile * 5 + 1) + tl.arange(0, ROWS)
    in_tile = row < row_end
    ax, ay, az, bx, by, bz, cx, cy, cz, p0, p1, p2 = whole_cell(CELL, PBC, system)
    ux, uy, uz, vx, vy, vz, wx, wy, wz = inverse(ax, ay, az, bx, by, bz, cx, cy, cz)
    cutoff = tl.load(LIMITS)
    q0 = cutoff * length(ux, uy, uz)
    q1 = cutoff * length(vx, vy, vz)
    q2 = cutoff * length(wx, wy, wz)
    good = usable(tl.where(p0 != 0, q0, 0.0), tl.where(p1 != 0, q1, 0.0), tl.where(p2 != 0, q2, 0.0))
    # f_j - f_i + n is within q of zero, so n is within q + 1/2 of the whole number nearest to f_i - f_j.
    r0 = tl.where(good & (p0 != 0), q0 + 0.50001, 0.0).to(tl.int32)
    r1 = tl.where(good & (p1 != 0), q1 + 0.50001, 0.0).to(tl.int32)
    r2 = tl.where(good & (p2 != 0), q2 + 0.50001, 0.0).to(tl.int32)
    images = (2 * r0 + 1) * (2 * r1 + 1) * (2 * r2 + 1)
    radius2 = (cutoff * cutoff).to(TYPE)
    c00, c01, c02 = ax.to(TYPE), ay.to(TYPE), az.to(TYPE)
    c10, c11, c12 = bx.to(TYPE), by.to(TYPE), bz.to(TYPE)
    c20, c21, c22 = cx.to(TYPE), cy.to(TYPE), cz.to(TYPE)
    i0, i1, i2, h0, h1, h2, fit = wrapped(POSITIONS, row, in_tile, ux, uy, uz, vx, vy, vz, wx, wy, wz, p0, p1, p2, TYPE)
    if tl.sum((in_tile & ~fit).to(tl.int32), 0) > 0:
        tl.atomic_or(FLAWS + launch % 2, 1, sem="relaxed")
    if not good:
        tl.atomic_or(FLAWS + launch % 2, 2, sem="relaxed")
        end = first
    column = tl.arange(0, COLUMNS)
    zero = tl.zeros((ROWS, COLUMNS), tl.int32)
    count = zero
    last, repeats = end, images
    if IMAGES:
        last, repeats = first + (end - first) * images, images // images
    for start in range(first, last, COLUMNS):
        j = start + column
        if IMAGES:
            j, g0, g1, g2 = candidate(j, first, images, r0, r1, r2)
        in_system = j < end
        j0, j1, j2, _, _, _, _ = wrapped(POSITIONS, j, in_system, ux, uy, uz, vx, vy, vz, wx, wy, wz, p0, p1, p2, TYPE)
        d0 = j0[None, :] - i0[:, None]
        d1 = j1[None, :] - i1[:, None]
        d2 = j2[None, :] - i2[:, None]
        d0 -= tl.where(p0 != 0, nearest(d0), 0.0)
        d1 -= tl.where(p1 != 0, nearest(d1), 0.0)
        d2 -= tl.where(p2 != 0, nearest(d2), 0.0)
        both = in_tile[:, None] & in_system[None, :]
        itself = row[:, None] == j[None, :]
        for m in range(repeats):
            if IMAGES:
                m0, m1, m2 = g0[None, :], g1[None, :], g2[None, :]
                untranslated = (m0 == 0) & (m1 == 0) & (m2 == 0)
            else:
                m0, m1, m2 = image_number(m, images, r0, r1, r2)
                untranslated = zero + m == images // 2
            e0 = d0 + m0.to(TYPE)
            e1 = d1 + m1.to(TYPE)
            e2 = d2 + m2.to(TYPE)
            x = e0 * c00 + e1 * c10 + e2 * c20
            y = e0 * c01 + e1 * c11 + e2 * c21
            z = e0 * c02 + e1 * c12 + e2 * c22
            near = (x * x + y * y + z * z < radius2) & both & ~(itself & untranslated)
            count += near.to(tl.int32)
    in_row = tl.sum(count, 1)
    own = tl.sum(in_row.to(tl.int64), 0)
    before = offset_of_tile(WORDS, tile, launch, own, WINDOW)
    at = before + tl.cumsum(in_row.to(tl.int64), 0) - in_row
    tl.store(ROW_PTR + row, tl.minimum(at, capacity).to(tl.int32), mask=in_tile)
    # Within a row, edges stand column after column: each lane has a place of its own, and nothing is summed over lanes.
    slot = at[:, None] + tl.cumsum(count, 1) - count
    for start in range(first, last, COLUMNS):
        j = start + column
        if IMAGES:
            j, g0, g1, g2 = candidate(j, first, images, r0, r1, r2)
        in_system = j < end
        j0, j1, j2, k0, k1, k2, _ = wrapped(
            POSITIONS, j, in_system, ux, uy, uz, vx, vy, vz, wx, wy, wz, p0, p1, p2, TYPE
        )
        d0 = j0[None, :] - i0[:, None]
        d1 = j1[None, :] - i1[:, None]
        d2 = j2[None, :] - i2[:, None]
        n0 = tl.where(p0 != 0, nearest(d0), 0.0)
        n1 = tl.where(p1 != 0, nearest(d1), 0.0)
        n2 = tl.where(p2 != 0, nearest(d2), 0.0)
        d0 -= n0
        d1 -= n1
        d2 -= n2
        both = in_tile[:, None] & in_system[None, :]
        itself = row[:, None] == j[None, :]
        for m in range(repeats):
            if IMAGES:
                m0, m1, m2 = g0[None, :], g1[None, :], g2[None, :]
                untranslated = (m0 == 0) & (m1 == 0) & (m2 == 0)
            else:
                m0, m1, m2 = image_number(m, images, r0, r1, r2)
                untranslated = zero + m == images // 2
            e0 = d0 + m0.to(TYPE)
            e1 = d1 + m1.to(TYPE)
            e2 = d2 + m2.to(TYPE)
            x = e0 * c00 + e1 * c10 + e2 * c20
            y = e0 * c01 + e1 * c11 + e2 * c21
            z = e0 * c02 + e1 * c12 + e2 * c22
            near = (x * x + y * y + z * z < radius2) & both & ~(itself & untranslated)
            keep = near & (slot < capacity)
            tl.store(SOURCE + slot, zero + j[None, :], mask=keep)
            tl.store(TARGET + slot, zero + row[:, None], mask=keep)
            tl.store(SHIFTS + slot * 3, m0 - n0.to(tl.int32) - k0[None, :] + h0[:, None], mask=keep)
            tl.store(SHIFTS + slot * 3 + 1, m1 - n1.to(tl.int32) - k1[None, :] + h1[:, None], mask=keep)
            tl.store(SHIFTS + slot * 3 + 2, m2 - n2.to(tl.int32) - k2[None, :] + h2[:, None], mask=keep)
            slot += near.to(tl.int32)
    if SKIN:
        place = row.to(tl.int64) * 3
        for k in tl.static_range(3):
            tl.store(REFERENCE + place + k, tl.load(POSITIONS + place + k, mask=in_tile), mask=in_tile)
        if tl.min(row, 0) == first:
            nine = tl.arange(0, 16)
            value = tl.load(CELL + system * 9 + nine, mask=nine < 9)
            tl.store(REFERENCE_CELL + system * 9 + nine, value, mask=nine < 9)
