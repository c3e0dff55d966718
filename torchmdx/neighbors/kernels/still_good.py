"""Checks whether a list made within cutoff + skin is still complete."""

import triton
import triton.language as tl

from torchmdx.neighbors.kernels.look_back import inverse, whole_cell


@triton.jit
def moved_too_far(POSITIONS, CELL, PBC, REFERENCE, REFERENCE_CELL, BLOCKS, ACTIVE, LIMITS, BLOCK: tl.constexpr):
    """Sets ACTIVE if an atom has moved too far since the list was made; the rule is derived in `skin.py`."""
    block = tl.program_id(0)
    system = tl.load(BLOCKS + block * 3)
    atom = tl.load(BLOCKS + block * 3 + 1) + tl.arange(0, BLOCK)
    mask = atom < tl.load(BLOCKS + block * 3 + 2)
    ax, ay, az, bx, by, bz, cx, cy, cz, _, _, _ = whole_cell(CELL, PBC, system)
    ox, oy, oz, px, py, pz, qx, qy, qz, _, _, _ = whole_cell(REFERENCE_CELL, PBC, system)
    ux, uy, uz, vx, vy, vz, wx, wy, wz = inverse(ax, ay, az, bx, by, bz, cx, cy, cz)
    # F⁻¹ - 1, row by row: F⁻¹ = h⁻¹ h₀.
    d0 = ux * ox + vx * px + wx * qx - 1.0
    d1 = ux * oy + vx * py + wx * qy
    d2 = ux * oz + vx * pz + wx * qz
    d3 = uy * ox + vy * px + wy * qx
    d4 = uy * oy + vy * py + wy * qy - 1.0
    d5 = uy * oz + vy * pz + wy * qz
    d6 = uz * ox + vz * px + wz * qx
    d7 = uz * oy + vz * py + wz * qy
    d8 = uz * oz + vz * pz + wz * qz - 1.0
    strain = tl.sqrt(d0 * d0 + d1 * d1 + d2 * d2 + d3 * d3 + d4 * d4 + d5 * d5 + d6 * d6 + d7 * d7 + d8 * d8)
    radius, cutoff = tl.load(LIMITS), tl.load(LIMITS + 1)
    allowed = (radius / (1.0 + strain) - cutoff) / 2
    ux, uy, uz, vx, vy, vz, wx, wy, wz = inverse(ox, oy, oz, px, py, pz, qx, qy, qz)
    place = atom.to(tl.int64) * 3
    x = tl.load(REFERENCE + place, mask=mask, other=0.0).to(tl.float64)
    y = tl.load(REFERENCE + place + 1, mask=mask, other=0.0).to(tl.float64)
    z = tl.load(REFERENCE + place + 2, mask=mask, other=0.0).to(tl.float64)
    f0 = x * ux + y * uy + z * uz
    f1 = x * vx + y * vy + z * vz
    f2 = x * wx + y * wy + z * wz
    x = tl.load(POSITIONS + place, mask=mask, other=0.0).to(tl.float64) - (f0 * ax + f1 * bx + f2 * cx)
    y = tl.load(POSITIONS + place + 1, mask=mask, other=0.0).to(tl.float64) - (f0 * ay + f1 * by + f2 * cy)
    z = tl.load(POSITIONS + place + 2, mask=mask, other=0.0).to(tl.float64) - (f0 * az + f1 * bz + f2 * cz)
    # NaN must count as too far.
    stays = x * x + y * y + z * z < tl.where(allowed > 0, allowed * allowed, -1.0)
    if tl.sum((mask & ~stays).to(tl.int32), 0) > 0:
        tl.store(ACTIVE, 1)
