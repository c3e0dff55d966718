"""Large systems: atoms sorted into bins, then each atom against the bins around it. Five kernels.

`count_bins` wraps the atoms and counts each bin, `start_bins` turns counts into offsets, `spread` puts the atoms of a
bin side by side, `order_bins` orders them by number (the atomics before leave them in any order), and `neighbours`
searches. Bins lie along the fractional directions, x fastest, so that adjacent bins along x are one range of atoms.

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
    pad,
    publish,
    report,
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
    bins to a cell (to an Å where not periodic). Fills WRAPPED [N,3], IMAGES [N] (int64, see `unpack`), BIN and
    RANK [N], adds to COUNTS; and, for a system's first atom, SHAPES [S,9] (the completed cell) and REACHES [S,3].
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
    packed = (m2.to(tl.int64) << 42) + (m1.to(tl.int64) << 21) + m0.to(tl.int64)
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
    if tile == 0:
        publish(WORDS, tile, launch, 2, own)
        before = tl.full((), 0, tl.int64)
    else:
        publish(WORDS, tile, launch, 1, own)
        before = offset_of_tile(WORDS, tile, launch, WINDOW)
        publish(WORDS, tile, launch, 2, before + own)
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


@triton.jit(do_not_specialize=["capacity", "num_groups"])
def pairs(
    GROUPS,
    GRIDS,
    PBC,
    SHAPES,
    REACHES,
    STARTS,
    X,
    Y,
    Z,
    ATOM,
    PLACES,
    SOURCE,
    TARGET,
    LIMITS,
    ACTIVE,
    capacity,
    num_groups,
    TYPE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLIT: tl.constexpr,
    FILL: tl.constexpr,
    SKIN: tl.constexpr,
):
    """Counts the pairs of a group of adjacent bins with the bins around it, or, with FILL, writes them.

    GROUPS [G,3]: system, first bin and number of bins. The lines of bins around a group are shared out to SPLIT
    programs. PLACES [N,SPLIT,COLUMNS]: counts, or where to write. Each lane
    (row, column) counts and writes on its own, so that nothing is summed over lanes: the edges of a row stand column
    after column. A pair is written as the place of its source among the sorted atoms (SOURCE) and its image (TARGET),
    which `spell_out` turns into edges: short scattered writes, then long ones in order.
    """
    if SKIN:
        if tl.load(ACTIVE) == 0:
            return
    column = tl.arange(0, COLUMNS)
    for work in range(tl.program_id(0), num_groups * SPLIT, tl.num_programs(0)):
        group, part = work // SPLIT, work % SPLIT
        system = tl.load(GROUPS + group * 3)
        bin = tl.load(GROUPS + group * 3 + 1)
        width = tl.load(GROUPS + group * 3 + 2)
        first = tl.load(STARTS + bin)
        last = tl.load(STARTS + bin + width)
        b0 = tl.load(GRIDS + system * 4)
        b1 = tl.load(GRIDS + system * 4 + 1)
        b2 = tl.load(GRIDS + system * 4 + 2)
        origin = tl.load(GRIDS + system * 4 + 3)
        p0 = tl.load(PBC + system * 3)
        p1 = tl.load(PBC + system * 3 + 1)
        p2 = tl.load(PBC + system * 3 + 2)
        r0 = tl.load(REACHES + system * 3)
        r1 = tl.load(REACHES + system * 3 + 1)
        r2 = tl.load(REACHES + system * 3 + 2)
        shape = SHAPES + system * 9
        ax, ay, az = tl.load(shape), tl.load(shape + 1), tl.load(shape + 2)
        bx, by, bz = tl.load(shape + 3), tl.load(shape + 4), tl.load(shape + 5)
        cx, cy, cz = tl.load(shape + 6), tl.load(shape + 7), tl.load(shape + 8)
        cutoff = tl.load(LIMITS)
        radius2 = (cutoff * cutoff).to(TYPE)
        local = bin - origin
        h0 = local % b0
        h1 = (local // b0) % b1
        h2 = local // (b0 * b1)
        # Folded bins are visited once, even if the cutoff goes round.
        low0, low1, low2 = h0 - r0, h1 - r1, h2 - r2
        high0, high1, high2 = h0 + width - 1 + r0, h1 + r1, h2 + r2
        high0 = tl.where(p0 == 0, tl.minimum(high0, low0 + b0 - 1), high0)
        high1 = tl.where(p1 == 0, tl.minimum(high1, low1 + b1 - 1), high1)
        high2 = tl.where(p2 == 0, tl.minimum(high2, low2 + b2 - 1), high2)
        # Quotients are rounded down because what is divided is raised above zero first.
        up0, up1, up2 = r0 + 1, r1 + 1, r2 + 1
        least, most = (low0 + up0 * b0) // b0 - up0, (high0 + up0 * b0) // b0 - up0
        wide = high1 - low1 + 1
        lines = wide * (high2 - low2 + 1)
        for chunk in range(first, last, ROWS):
            place = chunk + tl.arange(0, ROWS)
            there = place < last
            x = tl.load(X + place, mask=there, other=float("nan"))[:, None]
            y = tl.load(Y + place, mask=there, other=float("nan"))[:, None]
            z = tl.load(Z + place, mask=there, other=float("nan"))[:, None]
            atom = tl.load(ATOM + place, mask=there, other=0)
            slots = PLACES + atom.to(tl.int64)[:, None] * (SPLIT * COLUMNS) + part * COLUMNS + column[None, :]
            count = tl.zeros((ROWS, COLUMNS), tl.int32)
            if FILL:
                count = tl.load(slots, mask=there[:, None], other=0)
            for number in range(part, lines, SPLIT):
                t2 = low2 + number // wide
                t1 = low1 + number % wide
                m2 = (t2 + up2 * b2) // b2 - up2
                m1 = (t1 + up1 * b1) // b1 - up1
                line = origin + ((t2 - m2 * b2) * b1 + (t1 - m1 * b1)) * b0
                n1 = tl.where(p1 != 0, m1, 0)
                n2 = tl.where(p2 != 0, m2, 0)
                for m0 in range(least, most + 1):
                    n0 = tl.where(p0 != 0, m0, 0)
                    start = tl.load(STARTS + line + tl.maximum(low0 - m0 * b0, 0))
                    end = tl.load(STARTS + line + tl.minimum(high0 - m0 * b0, b0 - 1) + 1)
                    sx = n0.to(TYPE) * ax + n1.to(TYPE) * bx + n2.to(TYPE) * cx
                    sy = n0.to(TYPE) * ay + n1.to(TYPE) * by + n2.to(TYPE) * cy
                    sz = n0.to(TYPE) * az + n1.to(TYPE) * bz + n2.to(TYPE) * cz
                    image = ((n2 + 512) * 1024 + n1 + 512) * 1024 + n0 + 512
                    # An atom is not its own neighbour; no place is -1.
                    itself = tl.where((n0 == 0) & (n1 == 0) & (n2 == 0), place, -1)[:, None]
                    for k in range(start, end, COLUMNS):
                        j = k + column
                        xj = tl.load(X + j, mask=j < end, other=float("nan"))[None, :]
                        yj = tl.load(Y + j, mask=j < end, other=float("nan"))[None, :]
                        zj = tl.load(Z + j, mask=j < end, other=float("nan"))[None, :]
                        dx = (xj - x) + sx
                        dy = (yj - y) + sy
                        dz = (zj - z) + sz
                        near = (dx * dx + dy * dy + dz * dz < radius2) & (j[None, :] != itself)
                        if FILL:
                            keep = near & (count < capacity)
                            tl.store(SOURCE + count, tl.broadcast_to(j[None, :], (ROWS, COLUMNS)), mask=keep)
                            tl.store(TARGET + count, tl.zeros((ROWS, COLUMNS), tl.int32) + image, mask=keep)
                        count += near.to(tl.int32)
            if not FILL:
                tl.store(slots, count, mask=there[:, None])


@triton.jit(do_not_specialize=["capacity", "tiles", "entries"])
def start_rows(
    PLACES,
    ROW_PTR,
    NUM_EDGES,
    NEEDED,
    OVERFLOW,
    INVALID,
    ACTIVE,
    DONE,
    UPDATES,
    TICKET,
    WORDS,
    FLAWS,
    capacity,
    tiles,
    entries,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    SKIN: tl.constexpr,
):
    """Turns the counts in PLACES into sums of those before, at most the capacity; and the outcome. Grid: tiles."""
    if SKIN:
        if tl.load(ACTIVE) == 0:
            return
    tile, launch = take_ticket(TICKET, tiles)
    entry = tile * BLOCK + tl.arange(0, BLOCK)
    count = tl.load(PLACES + entry, mask=entry < entries, other=0)
    own = tl.sum(count, 0).to(tl.int64)
    if tile == 0:
        publish(WORDS, tile, launch, 2, own)
        before = tl.full((), 0, tl.int64)
    else:
        publish(WORDS, tile, launch, 1, own)
        before = offset_of_tile(WORDS, tile, launch, WINDOW)
        publish(WORDS, tile, launch, 2, before + own)
    start = tl.minimum(before + (tl.cumsum(count, 0) - count), capacity).to(tl.int32)
    tl.store(PLACES + entry, start, mask=entry < entries)
    tl.store(ROW_PTR + entry // COLUMNS, start, mask=(entry < entries) & (entry % COLUMNS == 0))
    if tile == tiles - 1:
        total = before + own
        tl.store(ROW_PTR + entries // COLUMNS, tl.minimum(total, capacity).to(tl.int32))
        flaws = tl.load(FLAWS)
        tl.store(FLAWS, 0)
        report(NUM_EDGES, NEEDED, OVERFLOW, INVALID, DONE, UPDATES, total, flaws, capacity)


@triton.jit
def unpack(packed, k: tl.constexpr):
    """Number k of three numbers between -2^20 and 2^20 in an int64: m0 + m1 2^21 + m2 2^42."""
    if k == 0:
        return ((packed + 1048576) & 2097151).to(tl.int32) - 1048576
    elif k == 1:
        return (((packed + 2199024304128) >> 21) & 2097151).to(tl.int32) - 1048576
    else:
        return ((packed + 2199024304128) >> 42).to(tl.int32)


@triton.jit(do_not_specialize=["capacity", "tiles", "num_atoms"])
def spell_out(
    ROW_PTR,
    NUM_EDGES,
    ATOM,
    SORTED_IMAGES,
    IMAGES,
    SOURCE,
    TARGET,
    SHIFTS,
    ACTIVE,
    DONE,
    TICKET,
    capacity,
    tiles,
    num_atoms,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    PADDERS: tl.constexpr,
    SKIN: tl.constexpr,
):
    """Pairs as `pairs` wrote them, into edges, in place; and the padding. Tiles of ROWS atoms; any grid >= PADDERS."""
    programs = tl.num_programs(0)
    if SKIN:
        if tl.load(ACTIVE) == 0:
            return
        # The last program to come here ends the search: all others have read ACTIVE by now.
        tile, _ = take_ticket(TICKET, programs)
        if tile == programs - 1:
            tl.store(ACTIVE, tl.load(DONE))
    program = tl.program_id(0)
    if program < PADDERS:
        total = tl.load(NUM_EDGES).to(tl.int64)
        pad(SOURCE, TARGET, SHIFTS, total, capacity, program, PADDERS, BLOCK, num_atoms)
    lane = tl.arange(0, BLOCK)
    for tile in range(program, tiles, programs):
        rows = tile * ROWS + 1 + tl.arange(0, ROWS)
        ends = tl.load(ROW_PTR + rows, mask=rows <= num_atoms, other=2147483647)
        first = tl.load(ROW_PTR + tile * ROWS)
        last = tl.load(ROW_PTR + tl.minimum(tile * ROWS + ROWS, num_atoms))
        for start in range(first, last, BLOCK):
            edge = start + lane
            mask = edge < last
            i = tile * ROWS + tl.sum((edge[:, None] >= ends[None, :]).to(tl.int32), 1)
            place = tl.load(SOURCE + edge, mask=mask, other=0)
            image = tl.load(TARGET + edge, mask=mask, other=0)
            ours = tl.load(IMAGES + i, mask=mask, other=0)
            theirs = tl.load(SORTED_IMAGES + place, mask=mask, other=0)
            tl.store(SOURCE + edge, tl.load(ATOM + place, mask=mask, other=0), mask=mask)
            tl.store(TARGET + edge, i, mask=mask)
            shift = SHIFTS + edge.to(tl.int64) * 3
            for k in tl.static_range(3):
                n = ((image >> (10 * k)) & 1023) - 512
                tl.store(shift + k, n + unpack(ours, k) - unpack(theirs, k), mask=mask)
