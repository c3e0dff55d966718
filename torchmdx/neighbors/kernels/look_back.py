"""What the GPU kernels of the neighbour search share: geometry of a cell, wrapped atoms, and offsets without a scan.

Fractional coordinates are computed in float64 and only then rounded: atoms may be many cells away from the origin.
Pair vectors are ((f_j - f_i) + n) @ cell, an odd function to the last bit, so that the list is symmetric.

Compressed rows need, before the first edge of a tile (a block of rows) is written, the number of edges of all tiles
before it. Instead of a kernel of its own, `offset_of_tile` looks back: each tile publishes its count, then sums the
counts of the tiles before it back to one that knows its whole prefix already ("decoupled look-back"). Tiles are
handed out by a ticket, so that every tile that is waited for is running. Published words carry the number of the
launch, so that nothing has to be cleared between launches.
"""

import triton
import triton.language as tl

from torchmdx.neighbors import images

# Bits of a published word: the count below, the launch and the kind of the count (1 own, 2 prefix) above.
COUNT_BITS: tl.constexpr = tl.constexpr(48)
COUNT_MASK: tl.constexpr = tl.constexpr((1 << 48) - 1)
LAUNCHES: tl.constexpr = tl.constexpr(4096)
# Needed, when it could not be counted: torchmdx.neighbors.capacity.UNCOUNTABLE.
UNCOUNTABLE: tl.constexpr = tl.constexpr(1 << 62)
# Farther away than this many cells (or this many Å, where not periodic) there are no coordinates: three images share
# an int64.
MOST_CELLS: tl.constexpr = tl.constexpr(2.0**20)
FARTHEST: tl.constexpr = tl.constexpr(2.0**30)
# More images than this, along one direction and in all, are a collapsed cell.
MOST_REACH: tl.constexpr = tl.constexpr(images.MOST_REACH)
MOST_IMAGES: tl.constexpr = tl.constexpr(images.MOST_IMAGES)


@triton.jit
def cross(ax, ay, az, bx, by, bz):
    """a × b."""
    return ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx


@triton.jit
def orthogonal(ax, ay, az, bx, by, bz):
    """A unit vector orthogonal to a and b, either or both of which may be zero."""
    cx, cy, cz = cross(ax, ay, az, bx, by, bz)
    if cx * cx + cy * cy + cz * cz == 0:
        if ax * ax + ay * ay + az * az == 0:
            ax, ay, az = bx, by, bz
        # Of two axes, at least one is not parallel to a.
        if ax * ax > ay * ay:
            cx, cy, cz = az, az * 0, -ax
        else:
            cx, cy, cz = az * 0, -az, ay
        if ax * ax + ay * ay + az * az == 0:
            cx = ax + 1.0
    length = tl.sqrt(cx * cx + cy * cy + cz * cz)
    return cx / length, cy / length, cz / length


@triton.jit
def whole_cell(CELL, PBC, system):
    """The completed cell (9 numbers, float64) and the three periodicities (int32) of a system."""
    p0 = tl.load(PBC + system * 3)
    p1 = tl.load(PBC + system * 3 + 1)
    p2 = tl.load(PBC + system * 3 + 2)
    at = CELL + system * 9
    ax = tl.where(p0 != 0, tl.load(at).to(tl.float64), 0.0)
    ay = tl.where(p0 != 0, tl.load(at + 1).to(tl.float64), 0.0)
    az = tl.where(p0 != 0, tl.load(at + 2).to(tl.float64), 0.0)
    bx = tl.where(p1 != 0, tl.load(at + 3).to(tl.float64), 0.0)
    by = tl.where(p1 != 0, tl.load(at + 4).to(tl.float64), 0.0)
    bz = tl.where(p1 != 0, tl.load(at + 5).to(tl.float64), 0.0)
    cx = tl.where(p2 != 0, tl.load(at + 6).to(tl.float64), 0.0)
    cy = tl.where(p2 != 0, tl.load(at + 7).to(tl.float64), 0.0)
    cz = tl.where(p2 != 0, tl.load(at + 8).to(tl.float64), 0.0)
    if (p0 | p1 | p2) == 0:  # any axes will do; molecules skip the roots and divisions
        ax, by, cz = ax + 1.0, by + 1.0, cz + 1.0
    else:
        if p0 == 0:
            ax, ay, az = orthogonal(bx, by, bz, cx, cy, cz)
        if p1 == 0:
            bx, by, bz = orthogonal(cx, cy, cz, ax, ay, az)
        if p2 == 0:
            cx, cy, cz = orthogonal(ax, ay, az, bx, by, bz)
    return ax, ay, az, bx, by, bz, cx, cy, cz, p0, p1, p2


@triton.jit
def inverse(ax, ay, az, bx, by, bz, cx, cy, cz):
    """Reciprocal vectors (9 numbers): fractional coordinate k is r · (numbers 3k to 3k+2). Not finite if singular."""
    ux, uy, uz = cross(bx, by, bz, cx, cy, cz)
    vx, vy, vz = cross(cx, cy, cz, ax, ay, az)
    wx, wy, wz = cross(ax, ay, az, bx, by, bz)
    over = 1.0 / (ax * ux + ay * uy + az * uz)
    return ux * over, uy * over, uz * over, vx * over, vy * over, vz * over, wx * over, wy * over, wz * over


@triton.jit
def length(x, y, z):
    """|(x, y, z)|."""
    return tl.sqrt(x * x + y * y + z * z)


@triton.jit
def usable(q0, q1, q2):
    """Whether a cutoff of q cells, or bins, along each direction can be searched: false for NaN or no volume.

    q is 0 where not periodic. The rule of torchmdx.neighbors.images.
    """
    fits = (q0 < MOST_REACH) & (q1 < MOST_REACH) & (q2 < MOST_REACH)
    n0 = tl.where(q0 > 0, 2 * q0 + 3, 1.0)
    n1 = tl.where(q1 > 0, 2 * q1 + 3, 1.0)
    n2 = tl.where(q2 > 0, 2 * q2 + 3, 1.0)
    return fits & (n0 * n1 * n2 < MOST_IMAGES)


@triton.jit
def fractional(x, y, z, ux, uy, uz, periodic):
    """(coordinate, image): the fractional coordinate along one reciprocal vector, in [0, 1) where periodic."""
    s = x * ux + y * uy + z * uz
    image = tl.where(periodic != 0, tl.floor(s), s * 0)
    return s - image, image


@triton.jit
def has_place(fraction, image):
    """Whether coordinates can be used: false for NaN, infinity and absurdly large ones."""
    return (tl.abs(fraction) < FARTHEST) & (tl.abs(image) < MOST_CELLS)


@triton.jit
def nearest(x):
    """x rounded to a whole number, to even at ties: an odd function, unlike floor(x + 1/2)."""
    if x.dtype == tl.float64:
        return (x + 6755399441055744.0) - 6755399441055744.0
    else:
        return (x + 12582912.0) - 12582912.0


@triton.jit
def take_ticket(TICKET, grid):
    """(tile, launch): which tile this program is, and a number of the launch between 0 and LAUNCHES - 1.

    The lower 32 bits count programs, the upper ones launches; whoever comes last turns to the next launch.
    """
    ticket = tl.atomic_add(TICKET, 1, sem="relaxed")
    tile = (ticket & 0xFFFFFFFF).to(tl.int32)
    if tile == grid - 1:
        tl.atomic_add(TICKET, (tl.full((), 1, tl.int64) << 32) - grid, sem="relaxed")
    return tile, (ticket >> 32) % LAUNCHES


@triton.jit
def publish(WORDS, tile, launch, kind, count):
    """Tells later tiles the count of this one (kind 1) or of it and all before it (kind 2)."""
    word = ((launch * 2 + kind) << COUNT_BITS) | count
    tl.atomic_xchg(WORDS + tile, word, sem="release")


@triton.jit
def offset_of_tile(WORDS, tile, launch, own, WINDOW: tl.constexpr):
    """Tells later tiles the count of this one, `own`; returns the sum of those of all tiles before it (int64)."""
    if tile == 0:
        publish(WORDS, tile, launch, 2, own)
        before = tl.full((), 0, tl.int64)
    else:
        publish(WORDS, tile, launch, 1, own)
        before = _sum_before(WORDS, tile, launch, WINDOW)
        publish(WORDS, tile, launch, 2, before + own)
    return before


@triton.jit
def _sum_before(WORDS, tile, launch, WINDOW: tl.constexpr):
    lane = tl.arange(0, WINDOW)
    total = tl.full((), 0, tl.int64)
    last = tile - 1
    while last >= 0:
        at = last - lane
        word = tl.load(WORDS + at, mask=at >= 0, other=0, volatile=True)
        kind = (word >> COUNT_BITS) - launch * 2
        kind = tl.where(at < 0, 2, kind)
        count = tl.where(at < 0, 0, word & COUNT_MASK)
        whole = tl.min(tl.where(kind == 2, lane, WINDOW), 0)
        missing = tl.min(tl.where((kind == 1) | (kind == 2), WINDOW, lane), 0)
        total += tl.sum(tl.where(lane < tl.minimum(whole + 1, missing), count, 0), 0)
        last = tl.where(whole < missing, -1, last - missing)
    return total


@triton.jit
def total_of_tiles(WORDS, tiles, launch):
    """Waits for the last tile; returns the sum of all counts (int64)."""
    word = tl.load(WORDS + tiles - 1, volatile=True)
    while (word >> COUNT_BITS) != launch * 2 + 2:
        word = tl.load(WORDS + tiles - 1, volatile=True)
    return word & COUNT_MASK


@triton.jit
def pad(SOURCE, TARGET, SHIFTS, total, capacity, padder, PADDERS: tl.constexpr, BLOCK: tl.constexpr, num_atoms):
    """One of PADDERS programs that fill the slots from `total` on."""
    first = tl.minimum(total, capacity) + padder * BLOCK
    lane = tl.arange(0, BLOCK).to(tl.int64)
    while first < capacity:
        at = first + lane
        mask = at < capacity
        tl.store(SOURCE + at, tl.zeros((BLOCK,), tl.int32) + (num_atoms - 1), mask=mask)
        tl.store(TARGET + at, tl.zeros((BLOCK,), tl.int32) + (num_atoms - 1), mask=mask)
        for k in tl.static_range(3):
            # The 3 BLOCK numbers of these slots in three coalesced stores.
            place = first * 3 + k * BLOCK + lane
            tl.store(SHIFTS + place, tl.zeros((BLOCK,), tl.int32), mask=place < tl.full((), 3, tl.int64) * capacity)
        first += PADDERS * BLOCK


@triton.jit
def report(NUM_EDGES, NEEDED, OVERFLOW, INVALID, ACTIVE, UPDATES, total, flaws, capacity):
    """Writes the outcome of a search. flaws: 1 for atoms without usable coordinates, 2 for an unusable cell."""
    tl.store(NUM_EDGES, tl.minimum(total, capacity).to(tl.int32))
    tl.store(NEEDED, tl.where(flaws >= 2, UNCOUNTABLE, total))
    over = (total > capacity) | (flaws >= 2)
    tl.store(OVERFLOW, over.to(tl.int8))
    tl.store(INVALID, (flaws != 0).to(tl.int8))
    # After an unusable list the next update searches, whatever the skin.
    tl.store(ACTIVE, (over | (flaws != 0)).to(tl.int32))
    tl.store(UPDATES, tl.load(UPDATES) + 1)
