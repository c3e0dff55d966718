"""Lattice arithmetic that every search kernel shares. Works on scalars and on blocks alike.

The dual vectors g_k of the periodic lattice vectors give fractional coordinates s_k = g_k · x, and 1 / |g_k| is the
height of the cell along k. Directions that are not periodic have the dual 0: they never take part in a shift.
"""

import triton
import triton.language as tl

# Most images of a cell along one direction; a cell that needs more is refused. Keeps loops finite whatever the cell.
MOST_IMAGES = tl.constexpr(512)


@triton.jit
def cross(ax, ay, az, bx, by, bz):
    """a x b."""
    return ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx


@triton.jit
def duals(cell, pbc, mask):
    """Nine components of g_0, g_1, g_2 from pointers to a cell [3,3] and to pbc [3] (int32)."""
    p0 = tl.load(pbc, mask=mask, other=0) != 0
    p1 = tl.load(pbc + 1, mask=mask, other=0) != 0
    p2 = tl.load(pbc + 2, mask=mask, other=0) != 0
    ax, ay, az = row(cell, 0, p0 & mask)
    bx, by, bz = row(cell, 1, p1 & mask)
    cx, cy, cz = row(cell, 2, p2 & mask)
    count = p0.to(tl.int32) + p1.to(tl.int32) + p2.to(tl.int32)
    # With two periodic directions the third row is their normal; with one the formula below is not used.
    nx, ny, nz = cross(bx, by, bz, cx, cy, cz)
    ax, ay, az = tl.where(p0, ax, nx), tl.where(p0, ay, ny), tl.where(p0, az, nz)
    nx, ny, nz = cross(cx, cy, cz, ax, ay, az)
    bx, by, bz = (
        tl.where(p1 | (count < 2), bx, nx),
        tl.where(p1 | (count < 2), by, ny),
        tl.where(p1 | (count < 2), bz, nz),
    )
    nx, ny, nz = cross(ax, ay, az, bx, by, bz)
    cx, cy, cz = (
        tl.where(p2 | (count < 2), cx, nx),
        tl.where(p2 | (count < 2), cy, ny),
        tl.where(p2 | (count < 2), cz, nz),
    )
    g0x, g0y, g0z = cross(bx, by, bz, cx, cy, cz)
    g1x, g1y, g1z = cross(cx, cy, cz, ax, ay, az)
    g2x, g2y, g2z = cross(ax, ay, az, bx, by, bz)
    volume = ax * g0x + ay * g0y + az * g0z
    one = count == 1
    d0 = tl.where(one, ax * ax + ay * ay + az * az, volume)
    d1 = tl.where(one, bx * bx + by * by + bz * bz, volume)
    d2 = tl.where(one, cx * cx + cy * cy + cz * cz, volume)
    g0x, g0y, g0z = tl.where(one, ax, g0x), tl.where(one, ay, g0y), tl.where(one, az, g0z)
    g1x, g1y, g1z = tl.where(one, bx, g1x), tl.where(one, by, g1y), tl.where(one, bz, g1z)
    g2x, g2y, g2z = tl.where(one, cx, g2x), tl.where(one, cy, g2y), tl.where(one, cz, g2z)
    # A cell without volume gets infinite duals, which `reach` turns into a flag.
    e0, e1, e2 = tl.where(d0 != 0, d0, 1.0), tl.where(d1 != 0, d1, 1.0), tl.where(d2 != 0, d2, 1.0)
    o0, o1, o2 = p0 & (d0 != 0), p1 & (d1 != 0), p2 & (d2 != 0)
    f0, f1, f2 = _infinite(p0 & ~o0), _infinite(p1 & ~o1), _infinite(p2 & ~o2)
    return (
        tl.where(o0, g0x / e0, f0), tl.where(o0, g0y / e0, f0), tl.where(o0, g0z / e0, f0),
        tl.where(o1, g1x / e1, f1), tl.where(o1, g1y / e1, f1), tl.where(o1, g1z / e1, f1),
        tl.where(o2, g2x / e2, f2), tl.where(o2, g2y / e2, f2), tl.where(o2, g2z / e2, f2),
    )  # fmt: skip


@triton.jit
def _infinite(where):
    return tl.where(where, float("inf"), 0.0)


@triton.jit
def row(cell, k: tl.constexpr, mask):
    """Row k of a cell, zero where the mask is not set."""
    return (
        tl.load(cell + 3 * k, mask=mask, other=0.0),
        tl.load(cell + 3 * k + 1, mask=mask, other=0.0),
        tl.load(cell + 3 * k + 2, mask=mask, other=0.0),
    )


@triton.jit
def reach(gx, gy, gz, cutoff, slack: tl.constexpr):
    """Most whole translations that keep an image within the cutoff: floor(cutoff / height + slack), as int32.

    Not a number or absurdly many (a cell without volume) gives MOST_IMAGES + 1, which callers flag.
    """
    wide = cutoff * tl.sqrt(gx * gx + gy * gy + gz * gz) + slack
    wide = tl.where(wide < MOST_IMAGES, wide, MOST_IMAGES + 1.0)  # also for NaN, which is not smaller
    return tl.floor(wide).to(tl.int32)


@triton.jit
def nearest(x):
    """Nearest whole number, odd in x to the last bit, so that both directions of a pair get opposite shifts."""
    return tl.where(x < 0, -tl.floor(0.5 - x), tl.floor(x + 0.5))
