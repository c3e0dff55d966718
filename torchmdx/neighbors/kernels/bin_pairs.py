"""Pairs of atoms that are sorted into bins. Three kernels: `find_pairs`, `start_rows`, `write_edges`.

`find_pairs` computes distances and leaves bits; `start_rows` turns counts into places; `write_edges` writes edges in
order, so that its stores are of whole lines.
"""

import triton
import triton.language as tl

from torchmdx.neighbors.kernels.look_back import offset_of_tile, pad, report, take_ticket


@triton.jit
def ones(bits):
    """The number of ones (int32) in a uint32."""
    two = bits - ((bits >> 1) & 0x55555555)
    four = (two & 0x33333333) + ((two >> 2) & 0x33333333)
    eight = (four + (four >> 4)) & 0x0F0F0F0F
    sixteen = eight + (eight >> 8)
    return ((sixteen + (sixteen >> 16)) & 0x3F).to(tl.int32)


@triton.jit
def place_of_one(bits, rank):
    """Where number `rank` (uint32, from 0) of the ones in a uint32 stands, from the lowest bit (uint32)."""
    two = bits - ((bits >> 1) & 0x55555555)
    four = (two & 0x33333333) + ((two >> 2) & 0x33333333)
    eight = (four + (four >> 4)) & 0x0F0F0F0F
    below = (eight + (eight >> 8)) & 0xFF
    at = tl.where(rank >= below, 16, 0).to(tl.uint32)
    rank -= tl.where(rank >= below, below, 0)
    below = (eight >> at) & 0xFF
    at += tl.where(rank >= below, 8, 0).to(tl.uint32)
    rank -= tl.where(rank >= below, below, 0)
    below = (four >> at) & 0xF
    at += tl.where(rank >= below, 4, 0).to(tl.uint32)
    rank -= tl.where(rank >= below, below, 0)
    below = (two >> at) & 3
    at += tl.where(rank >= below, 2, 0).to(tl.uint32)
    rank -= tl.where(rank >= below, below, 0)
    return at + tl.where(rank >= ((bits >> at) & 1), 1, 0).to(tl.uint32)


@triton.jit
def unpack(packed, k: tl.constexpr):
    """Number k of three numbers of 21 bits in an int64."""
    return (packed >> (21 * k)).to(tl.int32) & 2097151


@triton.jit
def walk(
    GROUPS, GRIDS, PBC, SHAPES, REACHES, STARTS, X, Y, Z, LIMITS, ATOM, IMAGES, HITS, PASSES, SOURCE, TARGET, SHIFTS,
    group, part, place, there, count, end, num_atoms, TYPE: tl.constexpr, COLUMNS: tl.constexpr, SPLIT: tl.constexpr,
    WORDS: tl.constexpr, WRITE: tl.constexpr,
):  # fmt: skip
    """Walks the atoms at `place` [ROWS] of a group of bins past the atoms around it; returns (counts, passes).

    A pass takes COLUMNS candidates, the same for all rows. Each lane (row, column) counts on its own. Without WRITE,
    the hits of a lane are bits in HITS [SPLIT,N,WORDS,COLUMNS], as far as there is room; PASSES has the first
    candidate and the image of each pass. With WRITE, edges are written from `count` to `end`: each lane its own.
    """
    column = tl.arange(0, COLUMNS)
    system = tl.load(GROUPS + group * 3)
    bin = tl.load(GROUPS + group * 3 + 1)
    width = tl.load(GROUPS + group * 3 + 2)
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
    x = tl.load(X + place, mask=there, other=float("nan"))[:, None]
    y = tl.load(Y + place, mask=there, other=float("nan"))[:, None]
    z = tl.load(Z + place, mask=there, other=float("nan"))[:, None]
    if WRITE:
        atom = tl.load(ATOM + place, mask=there, other=0)[:, None]
        ours = tl.load(IMAGES + place, mask=there, other=0)[:, None]
    else:
        passes = PASSES + (tl.full((), SPLIT, tl.int64) * group + part) * (32 * WORDS)
        row = tl.full((), 1, tl.int64) * part * num_atoms + place
        hits = HITS + row[:, None] * (WORDS * COLUMNS) + column[None, :]
    bits = tl.zeros_like(count)
    bit = tl.full((), 1, tl.int32)
    number = tl.full((), 0, tl.int32)
    for line in range(part, lines, SPLIT):
        t2 = low2 + line // wide
        t1 = low1 + line % wide
        m2 = (t2 + up2 * b2) // b2 - up2
        m1 = (t1 + up1 * b1) // b1 - up1
        at = origin + ((t2 - m2 * b2) * b1 + (t1 - m1 * b1)) * b0
        n1 = tl.where(p1 != 0, m1, 0)
        n2 = tl.where(p2 != 0, m2, 0)
        for m0 in range(least, most + 1):
            n0 = tl.where(p0 != 0, m0, 0)
            first = tl.load(STARTS + at + tl.maximum(low0 - m0 * b0, 0))
            last = tl.load(STARTS + at + tl.minimum(high0 - m0 * b0, b0 - 1) + 1)
            sx = n0.to(TYPE) * ax + n1.to(TYPE) * bx + n2.to(TYPE) * cx
            sy = n0.to(TYPE) * ay + n1.to(TYPE) * by + n2.to(TYPE) * cy
            sz = n0.to(TYPE) * az + n1.to(TYPE) * bz + n2.to(TYPE) * cz
            image = ((n2 + 512) * 1024 + n1 + 512) * 1024 + n0 + 512
            # An atom is not its own neighbour; no place is -1.
            itself = tl.where((n0 == 0) & (n1 == 0) & (n2 == 0), place, -1)[:, None]
            for k in range(first, last, COLUMNS):
                j = k + column
                xj = tl.load(X + j, mask=j < last, other=float("nan"))[None, :]
                yj = tl.load(Y + j, mask=j < last, other=float("nan"))[None, :]
                zj = tl.load(Z + j, mask=j < last, other=float("nan"))[None, :]
                dx = (xj - x) + sx
                dy = (yj - y) + sy
                dz = (zj - z) + sz
                near = (dx * dx + dy * dy + dz * dz < radius2) & (j[None, :] != itself)
                if WRITE:
                    keep = near & (count < end)
                    source = tl.load(ATOM + j, mask=j < last, other=0)[None, :]
                    theirs = tl.load(IMAGES + j, mask=j < last, other=0)[None, :]
                    store_edges(SOURCE, TARGET, SHIFTS, count, source, atom, image, ours, theirs, keep)
                    count += near.to(tl.int32)
                else:
                    packed = (image.to(tl.int64) << 32) | k
                    tl.store(passes + number, packed, mask=number < 32 * WORDS)
                    bits = tl.where(near, bits | bit, bits)
                    number += 1
                    bit = bit << 1
                    if bit == 0:
                        count += ones(bits.to(tl.uint32, bitcast=True))
                        if number <= 32 * WORDS:
                            tl.store(hits + (number // 32 - 1) * COLUMNS, bits, mask=there[:, None])
                        bits = tl.zeros_like(count)
                        bit = tl.full((), 1, tl.int32)
    if not WRITE:
        count += ones(bits.to(tl.uint32, bitcast=True))
        if number < 32 * WORDS:
            tl.store(hits + number // 32 * COLUMNS, bits, mask=there[:, None])
    return count, number


@triton.jit
def store_edges(SOURCE, TARGET, SHIFTS, edge, source, target, image, ours, theirs, keep):
    """Writes edges. image: three numbers of ten bits; ours, theirs: images of both atoms, see `unpack`."""
    tl.store(SOURCE + edge, source + tl.zeros_like(edge), mask=keep)
    tl.store(TARGET + edge, target + tl.zeros_like(edge), mask=keep)
    shift = SHIFTS + edge.to(tl.int64) * 3
    for k in tl.static_range(3):
        n = ((image >> (10 * k)) & 1023) - 512
        tl.store(shift + k, n + unpack(ours, k) - unpack(theirs, k) + tl.zeros_like(edge), mask=keep)


@triton.jit(do_not_specialize=["num_groups", "num_atoms"])
def find_pairs(
    GROUPS, GRIDS, PBC, SHAPES, REACHES, STARTS, X, Y, Z, LIMITS, ATOM, IMAGES, HITS, PASSES, LENGTHS, AFTER, COUNTS,
    ACTIVE, num_groups, num_atoms, TYPE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPLIT: tl.constexpr,
    WORDS: tl.constexpr, SKIN: tl.constexpr,
):  # fmt: skip
    """Finds the pairs of groups of adjacent bins with the bins around them.

    GROUPS [G,3]: system, first bin and number of bins. The lines of bins around a group are shared out to SPLIT
    programs. Fills HITS and PASSES (see `walk`), LENGTHS [G,SPLIT], the number of passes, COUNTS [N,SPLIT], the pairs
    of an atom, and AFTER [SPLIT,N,COLUMNS], those of each lane and of the lanes before it among ROWS atoms. HITS and
    AFTER are by place.
    """
    if SKIN:
        if tl.load(ACTIVE) == 0:
            return
    column = tl.arange(0, COLUMNS)
    for work in range(tl.program_id(0), num_groups * SPLIT, tl.num_programs(0)):
        group, part = work // SPLIT, work % SPLIT
        bin = tl.load(GROUPS + group * 3 + 1)
        last = tl.load(STARTS + bin + tl.load(GROUPS + group * 3 + 2))
        for chunk in range(tl.load(STARTS + bin), last, ROWS):
            place = chunk + tl.arange(0, ROWS)
            there = place < last
            none = tl.zeros((ROWS, COLUMNS), tl.int32)
            count, number = walk(
                GROUPS, GRIDS, PBC, SHAPES, REACHES, STARTS, X, Y, Z, LIMITS, ATOM, IMAGES, HITS, PASSES, HITS, HITS,
                HITS, group, part, place, there, none, none, num_atoms, TYPE, COLUMNS, SPLIT, WORDS, False,
            )  # fmt: skip
            tl.store(LENGTHS + work, number)
            of_rows = tl.sum(count, 1)
            after = tl.cumsum(count, 1) + (tl.cumsum(of_rows, 0) - of_rows)[:, None]
            row = tl.full((), 1, tl.int64) * part * num_atoms + place
            tl.store(AFTER + row[:, None] * COLUMNS + column[None, :], after, mask=there[:, None])
            atom = tl.load(ATOM + place, mask=there, other=0).to(tl.int64)
            tl.store(COUNTS + atom * SPLIT + part, of_rows, mask=there)


@triton.jit(do_not_specialize=["capacity", "tiles", "entries"])
def start_rows(
    COUNTS,
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
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    SKIN: tl.constexpr,
):
    """Turns COUNTS [entries] into sums of those before, at most the capacity; and the outcome. Grid: tiles."""
    if SKIN:
        if tl.load(ACTIVE) == 0:
            return
    tile, launch = take_ticket(TICKET, tiles)
    entry = tile * BLOCK + tl.arange(0, BLOCK)
    count = tl.load(COUNTS + entry, mask=entry < entries, other=0)
    own = tl.sum(count, 0).to(tl.int64)
    before = offset_of_tile(WORDS, tile, launch, own, WINDOW)
    start = tl.minimum(before + (tl.cumsum(count, 0) - count), capacity).to(tl.int32)
    tl.store(COUNTS + entry, start, mask=entry < entries)
    tl.store(ROW_PTR + entry // SPLIT, start, mask=(entry < entries) & (entry % SPLIT == 0))
    if tile == tiles - 1:
        total = before + own
        tl.store(ROW_PTR + entries // SPLIT, tl.minimum(total, capacity).to(tl.int32))
        flaws = tl.load(FLAWS)
        tl.store(FLAWS, 0)
        report(NUM_EDGES, NEEDED, OVERFLOW, INVALID, DONE, UPDATES, total, flaws, capacity)


@triton.jit(do_not_specialize=["capacity", "num_groups", "num_atoms"])
def write_edges(
    GROUPS, GRIDS, PBC, SHAPES, REACHES, STARTS, X, Y, Z, LIMITS, ATOM, IMAGES, HITS, PASSES, LENGTHS, AFTER, COUNTS,
    NUM_EDGES, SOURCE, TARGET, SHIFTS, ACTIVE, DONE, TICKET, capacity, num_groups, num_atoms, TYPE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPLIT: tl.constexpr, WORDS: tl.constexpr, SLOTS: tl.constexpr,
    PADDERS: tl.constexpr, BLOCK: tl.constexpr, SKIN: tl.constexpr,
):  # fmt: skip
    """Writes the edges that `find_pairs` found, row by row and in a row column by column; and the padding.

    COUNTS [N,SPLIT]: where the edges begin. A program takes the edges of ROWS atoms, SLOTS at a time. Each lane finds
    its edge by its rank among them: first row and column, then the bit. In groups with more passes than bits,
    distances are computed again. Any grid >= PADDERS.
    """
    programs = tl.num_programs(0)
    if SKIN:
        if tl.load(ACTIVE) == 0:
            return
        # The last program to come here ends the search: all others have read ACTIVE by now.
        order, _ = take_ticket(TICKET, programs)
        if order == programs - 1:
            tl.store(ACTIVE, tl.load(DONE))
    if tl.program_id(0) < PADDERS:
        total = tl.load(NUM_EDGES).to(tl.int64)
        pad(SOURCE, TARGET, SHIFTS, total, capacity, tl.program_id(0), PADDERS, BLOCK, num_atoms)
    LANES: tl.constexpr = ROWS * COLUMNS
    for work in range(tl.program_id(0), num_groups * SPLIT, programs):
        group, part = work // SPLIT, work % SPLIT
        bin = tl.load(GROUPS + group * 3 + 1)
        last = tl.load(STARTS + bin + tl.load(GROUPS + group * 3 + 2))
        is_short = tl.load(LENGTHS + work) <= 32 * WORDS
        passes = PASSES + tl.full((), 32 * WORDS, tl.int64) * work
        for chunk in range(tl.load(STARTS + bin), last, ROWS):
            first = tl.full((), 1, tl.int64) * part * num_atoms + chunk
            after, hits = AFTER + first * COLUMNS, HITS + first * (WORDS * COLUMNS)
            lanes = tl.minimum(last - chunk, ROWS) * COLUMNS
            if is_short:
                total = tl.load(after + lanes - 1)
                for begin in range(0, total, SLOTS):
                    rank = begin + tl.arange(0, SLOTS)
                    keep = rank < total
                    # The lane of the edge: as many have no hit beyond this rank.
                    lane = tl.zeros((SLOTS,), tl.int32)
                    skipped = tl.zeros((SLOTS,), tl.int32)
                    for level in tl.static_range(10):
                        if (512 >> level) < LANES:
                            at = lane + ((512 >> level) - 1)
                            until = tl.load(after + at, mask=keep & (at < lanes), other=2147483647)
                            lane += tl.where(until <= rank, 512 >> level, 0)
                            skipped = tl.where(until <= rank, until, skipped)
                    row, column = lane // COLUMNS, lane % COLUMNS
                    left = (rank - skipped).to(tl.uint32)
                    at = row * (WORDS * COLUMNS) + column
                    bits = tl.load(hits + at, mask=keep, other=0).to(tl.uint32, bitcast=True)
                    number = tl.zeros((SLOTS,), tl.int32)
                    for _word in tl.static_range(WORDS - 1):
                        found = ones(bits).to(tl.uint32)
                        number += tl.where(left >= found, 32, 0)
                        at += tl.where(left >= found, COLUMNS, 0)
                        left -= tl.where(left >= found, found, 0)
                        bits = tl.load(hits + at, mask=keep, other=0).to(tl.uint32, bitcast=True)
                    number += place_of_one(bits, left).to(tl.int32)
                    packed = tl.load(passes + number, mask=keep, other=0)
                    j = (packed & 0x7FFFFFFF).to(tl.int32) + column
                    source = tl.load(ATOM + j, mask=keep, other=0)
                    theirs = tl.load(IMAGES + j, mask=keep, other=0)
                    atom = tl.load(ATOM + chunk + row, mask=keep, other=0)
                    ours = tl.load(IMAGES + chunk + row, mask=keep, other=0)
                    start = tl.load(COUNTS + atom.to(tl.int64) * SPLIT + part, mask=keep, other=0)
                    place = rank - tl.load(after + row * COLUMNS - 1, mask=keep & (row > 0), other=0)
                    image = (packed >> 32).to(tl.int32)
                    keep &= place < capacity - start
                    store_edges(SOURCE, TARGET, SHIFTS, start + place, source, atom, image, ours, theirs, keep)
            else:
                row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
                there = row < last - chunk
                atom = tl.load(ATOM + chunk + row, mask=there, other=0)
                start = tl.load(COUNTS + atom.to(tl.int64) * SPLIT + part, mask=there, other=0)
                lane = row[:, None] * COLUMNS + column[None, :]
                before = tl.load(after + lane - 1, mask=there[:, None] & (lane > 0), other=0)
                before -= tl.load(after + row * COLUMNS - 1, mask=there & (row > 0), other=0)[:, None]
                before = tl.minimum(before, capacity - start[:, None])
                walk(
                    GROUPS, GRIDS, PBC, SHAPES, REACHES, STARTS, X, Y, Z, LIMITS, ATOM, IMAGES, HITS, PASSES, SOURCE,
                    TARGET, SHIFTS, group, part, chunk + row, there, start[:, None] + before, capacity, num_atoms, TYPE,
                    COLUMNS, SPLIT, WORDS, True,
                )  # fmt: skip
