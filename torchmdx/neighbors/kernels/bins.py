"""Large systems: atoms sorted into bins, before `bin_pairs` compares each with the bins around it. Four kernels.

`count_bins` wraps the atoms and counts each bin, `start_bins` turns counts into offsets, `spread` puts the atoms of a
bin side by side, `order_bins` orders them by number (the atomics before leave them in any order). Bins lie along the
fractional directions, x fastest, so that adjacent bins along x are one range of atoms.

Along a periodic direction there is a whole number of bins to a cell, and going past the last one leads to the first
of the next image. Along the others bins are folded: bin b holds everything at b + any multiple of the number of
bins, so that no atom is outside, wherever it drifts. How many bins the cutoff reaches is found from the cell of the
moment: a cell that shrinks costs time, never edges.
"""

import triton
import triton.language as tl

from torchmdx.neighbors.kernels.look_back import (
    fractional,
    has_place,
    inverse,
    length,
    offset_of_tile,
    take_ticket,
    usable,
    whole_cell,
)


@triton.jit
def bin_along(f, image, scale, bins, periodic):
    """Number of the bin (int32) that holds fractional coordinate f: clamped where periodic, folded where not."""
    s = tl.floor(f * scale)
    inside = tl.minimum(s, (bins - 1).to(tl.float64))
    folded = s - tl.floor(s / bins.to(tl.float64)) * bins.to(tl.float64)
    folded = tl.minimum(tl.maximum(folded, 0.0), (bins - 1).to(tl.float64))
    return tl.where(periodic != 0, inside, folded).to(tl.int32)


@triton.jit
def count_bins(
    POSITIONS,
    CELL,
    PBC,
    BLOCKS,
    GRIDS,
    SCALES,
    WRAPPED,
    IMAGES,
    BIN,
    RANK,
    COUNTS,
    SHAPES,
    REACHES,
    FLAWS,
    ACTIVE,
    REFERENCE,
    REFERENCE_CELL,
    LIMITS,
    TYPE: tl.constexpr,
    BLOCK: tl.constexpr,
    SKIN: tl.constexpr,
):
    """A program wraps BLOCK atoms of one system.

    BLOCKS [B,3]: system, first and end atom. GRIDS [S,4]: bins along each direction, first bin. SCALES [S,3] float64:
    bins to a cell (to an Å where not periodic). Fills WRAPPED [N,3], IMAGES [N] (int64: three numbers of
    21 bits, raised by 2^20), BIN and RANK [N], adds to COUNTS; and, for a system's first atom, SHAPES [S,9] (the
    completed cell) and REACHES [S,3].
    """
    if SKIN:
        if tl.load(ACTIVE) == 0:
            return
    block = tl.program_id(0)
    system = tl.load(BLOCKS + block * 3)
    start = tl.load(BLOCKS + block * 3 + 1)
    atom = start + tl.arange(0, BLOCK)
    mask = atom < tl.load(BLOCKS + block * 3 + 2)
    ax, ay, az, bx, by, bz, cx, cy, cz, p0, p1, p2 = whole_cell(CELL, PBC, system)
    ux, uy, uz, vx, vy, vz, wx, wy, wz = inverse(ax, ay, az, bx, by, bz, cx, cy, cz)
    s0 = tl.load(SCALES + system * 3)
    s1 = tl.load(SCALES + system * 3 + 1)
    s2 = tl.load(SCALES + system * 3 + 2)
    b0 = tl.load(GRIDS + system * 4)
    b1 = tl.load(GRIDS + system * 4 + 1)
    b2 = tl.load(GRIDS + system * 4 + 2)
    cutoff = tl.load(LIMITS)
    q0 = cutoff * length(ux, uy, uz)
    q1 = cutoff * length(vx, vy, vz)
    q2 = cutoff * length(wx, wy, wz)
    good = usable(tl.where(p0 != 0, q0 * s0, 0.0), tl.where(p1 != 0, q1 * s1, 0.0), tl.where(p2 != 0, q2 * s2, 0.0))
    place = atom.to(tl.int64) * 3
    x = tl.load(POSITIONS + place, mask=mask, other=0.0)
    y = tl.load(POSITIONS + place + 1, mask=mask, other=0.0)
    z = tl.load(POSITIONS + place + 2, mask=mask, other=0.0)
    if SKIN:
        tl.store(REFERENCE + place, x, mask=mask)
        tl.store(REFERENCE + place + 1, y, mask=mask)
        tl.store(REFERENCE + place + 2, z, mask=mask)
    x, y, z = x.to(tl.float64), y.to(tl.float64), z.to(tl.float64)
    f0, m0 = fractional(x, y, z, ux, uy, uz, p0)
    f1, m1 = fractional(x, y, z, vx, vy, vz, p1)
    f2, m2 = fractional(x, y, z, wx, wy, wz, p2)
    f0 += tl.where(good, 0.0, float("nan"))
    fit = has_place(f0, m0) & has_place(f1, m1) & has_place(f2, m2)
    if tl.sum((mask & ~fit).to(tl.int32), 0) > 0:
        tl.atomic_or(FLAWS, tl.where(good, 1, 2), sem="relaxed")
    f0 = tl.where(fit, f0, 0.0)
    f1 = tl.where(fit, f1, 0.0)
    f2 = tl.where(fit, f2, 0.0)
    h0 = bin_along(f0, m0, s0, b0, p0)
    h1 = bin_along(f1, m1, s1, b1, p1)
    h2 = bin_along(f2, m2, s2, b2, p2)
    bin = tl.load(GRIDS + system * 4 + 3) + (h2 * b1 + h1) * b0 + h0
    rank = tl.atomic_add(COUNTS + bin, 1, mask=mask, sem="relaxed")
    tl.store(BIN + atom, bin, mask=mask)
    tl.store(RANK + atom, rank, mask=mask)
    nowhere = float("nan")
    tl.store(WRAPPED + place, tl.where(fit, x - (m0 * ax + m1 * bx + m2 * cx), nowhere).to(TYPE), mask=mask)
    tl.store(WRAPPED + place + 1, tl.where(fit, y - (m0 * ay + m1 * by + m2 * cy), nowhere).to(TYPE), mask=mask)
    tl.store(WRAPPED + place + 2, tl.where(fit, z - (m0 * az + m1 * bz + m2 * cz), nowhere).to(TYPE), mask=mask)
    packed = ((m2.to(tl.int64) + 1048576) << 42) + ((m1.to(tl.int64) + 1048576) << 21) + m0.to(tl.int64) + 1048576
    tl.store(IMAGES + atom, tl.where(fit, packed, 0), mask=mask)
    if tl.load(BLOCKS + block * 3 - 3, mask=block > 0, other=-1) != system:
        # Atoms are within q of each other along each direction, and so their bins within floor(q scale) + 1.
        tl.store(REACHES + system * 3, tl.where(good, q0 * s0 + 1.0001, 0.0).to(tl.int32))
        tl.store(REACHES + system * 3 + 1, tl.where(good, q1 * s1 + 1.0001, 0.0).to(tl.int32))
        tl.store(REACHES + system * 3 + 2, tl.where(good, q2 * s2 + 1.0001, 0.0).to(tl.int32))
        shape = SHAPES + system * 9
        tl.store(shape, ax.to(TYPE))
        tl.store(shape + 1, ay.to(TYPE))
        tl.store(shape + 2, az.to(TYPE))
        tl.store(shape + 3, bx.to(TYPE))
        tl.store(shape + 4, by.to(TYPE))
        tl.store(shape + 5, bz.to(TYPE))
        tl.store(shape + 6, cx.to(TYPE))
        tl.store(shape + 7, cy.to(TYPE))
        tl.store(shape + 8, cz.to(TYPE))
        if SKIN:
            nine = tl.arange(0, 16)
            value = tl.load(CELL + system * 9 + nine, mask=nine < 9)
            tl.store(REFERENCE_CELL + system * 9 + nine, value, mask=nine < 9)


@triton.jit(do_not_specialize=["bins", "tiles"])
def start_bins(
    COUNTS, STARTS, ACTIVE, TICKET, WORDS, bins, tiles, BLOCK: tl.constexpr, WINDOW: tl.constexpr, SKIN: tl.constexpr
):
    """STARTS [bins+1]: sums of COUNTS [bins], which are cleared for the next search. Grid: tiles."""
    if SKIN:
        if tl.load(ACTIVE) == 0:
            return
    tile, launch = take_ticket(TICKET, tiles)
    bin = tile * BLOCK + tl.arange(0, BLOCK)
    count = tl.load(COUNTS + bin, mask=bin < bins, other=0)
    tl.store(COUNTS + bin, tl.zeros((BLOCK,), tl.int32), mask=bin < bins)
    own = tl.sum(count, 0).to(tl.int64)
    before = offset_of_tile(WORDS, tile, launch, own, WINDOW)
    start = before.to(tl.int32) + tl.cumsum(count, 0) - count
    tl.store(STARTS + bin, start, mask=bin < bins)
    if tile == tiles - 1:
        tl.store(STARTS + bins, (before + own).to(tl.int32))


@triton.jit(do_not_specialize=["num_atoms"])
def spread(BIN, RANK, STARTS, MEMBERS, ACTIVE, num_atoms, BLOCK: tl.constexpr, SKIN: tl.constexpr):
    """MEMBERS [N]: the atoms, bin after bin."""
    if SKIN:
        if tl.load(ACTIVE) == 0:
            return
    atom = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = atom < num_atoms
    bin = tl.load(BIN + atom, mask=mask, other=0)
    rank = tl.load(RANK + atom, mask=mask, other=0)
    tl.store(MEMBERS + tl.load(STARTS + bin, mask=mask, other=0) + rank, atom, mask=mask)


@triton.jit(do_not_specialize=["num_atoms"])
def order_bins(
    MEMBERS,
    BIN,
    STARTS,
    WRAPPED,
    IMAGES,
    X,
    Y,
    Z,
    ATOM,
    SORTED_IMAGES,
    ACTIVE,
    num_atoms,
    BLOCK: tl.constexpr,
    SKIN: tl.constexpr,
):
    """X, Y, Z and ATOM [N]: fractional coordinates and numbers of the atoms, bin after bin, ascending in each."""
    if SKIN:
        if tl.load(ACTIVE) == 0:
            return
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = place < num_atoms
    atom = tl.load(MEMBERS + place, mask=mask, other=0)
    bin = tl.load(BIN + atom, mask=mask, other=0)
    start = tl.load(STARTS + bin, mask=mask, other=0)
    end = tl.load(STARTS + bin + 1, mask=mask, other=0)
    rank = tl.zeros((BLOCK,), tl.int32)
    for k in range(tl.max(end - start, 0)):
        other = tl.load(MEMBERS + start + k, mask=mask & (start + k < end), other=2147483647)
        rank += (other < atom).to(tl.int32)
    at = start + rank
    source = WRAPPED + atom.to(tl.int64) * 3
    tl.store(X + at, tl.load(source, mask=mask), mask=mask)
    tl.store(Y + at, tl.load(source + 1, mask=mask), mask=mask)
    tl.store(Z + at, tl.load(source + 2, mask=mask), mask=mask)
    tl.store(ATOM + at, atom, mask=mask)
    tl.store(SORTED_IMAGES + at, tl.load(IMAGES + atom, mask=mask), mask=mask)
