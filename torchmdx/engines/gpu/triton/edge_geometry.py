"""Geometry of the edges: directions, places in the filter table, and the cutoff function.

::

    | buffer | per edge | holds |
    |---|---|---|
    | KNOT | int32 | interval of the filter table; -1 beyond the cutoff: nothing is read or added there |
    | PLACE | 4 floats | unit vector d from target to source, and t, the place inside the interval |
    | STRETCH | 2 floats | dx/dr of the table's variable, and 1/r |
    | HALF | 3 floats | h_e: the part of ∂E/∂v_e that the row of e computes (see forces.py) |
"""

import triton
import triton.language as tl

from torchmdx.engines.gpu.triton.nine import store3
from torchmdx.evaluation.derivatives import SAME_PLACE

CLOSEST = tl.constexpr(SAME_PLACE)


@triton.jit(do_not_specialize=["num_atoms", "last_interval"])
def place_edges(
    POSITIONS, CELL, SYSTEM, ROW_PTR, SOURCE, TARGET, SHIFTS, CONSTANTS, KNOT, PLACE, STRETCH, num_atoms, last_interval,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Direction and table position of every edge. Differences are taken in float64: atoms may be far from the origin.

    CONSTANTS: p, q, s, α, cutoff of x(r) = p + q r + s exp(-α r), float64.
    """
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = e < tl.load(ROW_PTR + num_atoms)
    i = tl.load(TARGET + e, mask=mask, other=0).to(tl.int64)
    place(e, mask, i, POSITIONS, CELL, SYSTEM, SOURCE, SHIFTS, CONSTANTS, KNOT, PLACE, STRETCH, last_interval)


@triton.jit
def place(
    e, mask, i, POSITIONS, CELL, SYSTEM, SOURCE, SHIFTS, CONSTANTS, KNOT, PLACE, STRETCH, last_interval
):  # fmt: skip
    """`place_edges` for edges e [B] of targets i [B] (int64), where mask is set."""
    j = tl.load(SOURCE + e, mask=mask, other=0).to(tl.int64)
    cell = CELL + tl.load(SYSTEM + i, mask=mask, other=0).to(tl.int64) * 9
    sa = tl.load(SHIFTS + e.to(tl.int64) * 3, mask=mask, other=0).to(tl.float64)
    sb = tl.load(SHIFTS + e.to(tl.int64) * 3 + 1, mask=mask, other=0).to(tl.float64)
    sc = tl.load(SHIFTS + e.to(tl.int64) * 3 + 2, mask=mask, other=0).to(tl.float64)
    x = _component(POSITIONS, cell, i, j, sa, sb, sc, mask, 0)
    y = _component(POSITIONS, cell, i, j, sa, sb, sc, mask, 1)
    z = _component(POSITIONS, cell, i, j, sa, sb, sc, mask, 2)
    r = tl.where(mask, tl.sqrt(x * x + y * y + z * z), 1.0)
    # The direction of atoms that coincide is NaN, and so are their energies and forces.
    inverse = tl.where(r < CLOSEST, float("nan"), 1.0 / r)
    p, q, s = tl.load(CONSTANTS), tl.load(CONSTANTS + 1), tl.load(CONSTANTS + 2)
    alpha, cutoff = tl.load(CONSTANTS + 3), tl.load(CONSTANTS + 4)
    decay = s * tl.exp(-alpha * r)
    position = p + q * r + decay
    # A NaN must count as inside, so that it reaches the energy, which the caller checks.
    inside = (r >= cutoff) == 0
    interval = tl.minimum(tl.maximum(position.to(tl.int32), 0), last_interval)
    tl.store(KNOT + e, tl.where(inside, interval, -1), mask=mask)
    place = PLACE + e.to(tl.int64) * 4
    direction = (x * inverse).to(tl.float32), (y * inverse).to(tl.float32), (z * inverse).to(tl.float32)
    store3(place, direction, mask, 1)
    tl.store(place + 3, (position - interval).to(tl.float32), mask=mask)
    tl.store(STRETCH + e.to(tl.int64) * 2, (q - alpha * decay).to(tl.float32), mask=mask)
    tl.store(STRETCH + e.to(tl.int64) * 2 + 1, inverse.to(tl.float32), mask=mask)


@triton.jit
def cosine_cut(STRETCH, e, mask, cutoff):
    """cut(r) and its slope for edges e: the kernels' cutoff function, for edges that are shorter than the cutoff."""
    r = 1.0 / tl.load(STRETCH + e.to(tl.int64) * 2 + 1, mask=mask, other=1.0)
    turn = 1.5707963267948966 / cutoff
    c, s = _quarter_turn(turn * r)
    return c * c, -2.0 * turn * c * s


@triton.jit
def _quarter_turn(x):
    """cos x and sin x for 0 <= x <= π/2, to 5e-9 and rounding.

    Functions for any x have a branch for large ones, across which no load of the caller is moved.
    """
    t = x * x
    c = 2.47601369e-05 - 2.60510548e-07 * t
    c = (((c * t - 1.38883609e-03) * t + 4.16666362e-02) * t - 4.99999994e-01) * t + 1.0
    s = 2.60518091e-06 * t - 1.98090563e-04
    s = ((s * t + 8.33305081e-03) * t - 1.66666580e-01) * t + 9.99999996e-01
    return c, s * x


@triton.jit
def _component(POSITIONS, cell, i, j, sa, sb, sc, mask, axis: tl.constexpr):
    """One component of r_source - r_target + shifts @ cell, float64."""
    here = tl.load(POSITIONS + i * 3 + axis, mask=mask, other=0).to(tl.float64)
    there = tl.load(POSITIONS + j * 3 + axis, mask=mask, other=0).to(tl.float64)
    a = tl.load(cell + axis, mask=mask, other=0).to(tl.float64)
    b = tl.load(cell + 3 + axis, mask=mask, other=0).to(tl.float64)
    c = tl.load(cell + 6 + axis, mask=mask, other=0).to(tl.float64)
    return there - here + (sa * a + sb * b + sc * c)
