"""Restraints on a GPU: energies and forces of terms, then their sums for atoms and structures in a fixed order.

The equations are those of `coordinates`. Differences of angles come from their sines and cosines, so that no angle is
wrapped. DISTANCE, ANGLE, TORSION and POSITION are the kinds of `restraints`.
"""

import triton
import triton.language as tl

from torchmdx.dynamics import restraints
from torchmdx.step import buffer_storage

DISTANCE = tl.constexpr(restraints.Distance.kind)
ANGLE = tl.constexpr(restraints.Angle.kind)
TORSION = tl.constexpr(restraints.Torsion.kind)
NOT_FINITE = tl.constexpr(buffer_storage.NOT_FINITE)
FIRST_BAD = tl.constexpr(buffer_storage.FIRST_BAD)


@triton.jit
def three(pointer, at, mask):
    """Three consecutive numbers from 3 * at on, 0 where masked."""
    x = tl.load(pointer + 3 * at, mask=mask, other=0.0)
    y = tl.load(pointer + 3 * at + 1, mask=mask, other=0.0)
    return x, y, tl.load(pointer + 3 * at + 2, mask=mask, other=0.0)


@triton.jit
def store_three(pointer, at, x, y, z, mask):
    tl.store(pointer + 3 * at, x, mask=mask)
    tl.store(pointer + 3 * at + 1, y, mask=mask)
    tl.store(pointer + 3 * at + 2, z, mask=mask)


@triton.jit
def cross(a0, a1, a2, b0, b1, b2):
    return a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0


@triton.jit
def polar_angle(y, x):
    """atan2(y, x) of a point on the unit circle, to rounding: a polynomial, then one step of Newton's method."""
    p, q = tl.abs(y), tl.abs(x)
    a = tl.minimum(p, q) / tl.maximum(p, q)
    s = a * a
    rest = 0.19354346 + s * (-0.11643287 + s * (0.05265332 - s * 0.01172120))
    angle = a * (0.99997726 + s * (-0.33262347 + s * rest))
    angle = tl.where(p > q, 1.5707963267948966 - angle, angle)
    angle = tl.where(x < 0, 3.141592653589793 - angle, angle)
    angle = tl.where(y < 0, -angle, angle)
    left = y * tl.cos(angle) - x * tl.sin(angle)  # sine of what is missing, 1e-5
    return angle + left * (1.0 + left * left / 6.0)


@triton.jit
def evaluate_terms(
    POSITIONS, KIND, ATOMS, REFERENCE, POINT, STIFFNESS, TERM_ENERGY, TERM_VIRIAL, TERM_FORCES, FLAGS, num_terms,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Energy, Σ r·f and the forces [4,3] on the atoms of each term; flags terms whose forces are not finite."""
    m = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    mask = m < num_terms
    kind = tl.load(KIND + m, mask=mask, other=0)
    reference = tl.load(REFERENCE + m, mask=mask, other=0.0)
    stiffness = tl.load(STIFFNESS + m, mask=mask, other=0.0)
    i, j = tl.load(ATOMS + 4 * m, mask=mask, other=0), tl.load(ATOMS + 4 * m + 1, mask=mask, other=0)
    k, n = tl.load(ATOMS + 4 * m + 2, mask=mask, other=0), tl.load(ATOMS + 4 * m + 3, mask=mask, other=0)
    i0, i1, i2 = three(POSITIONS, i, mask)
    j0, j1, j2 = three(POSITIONS, j, mask)
    k0, k1, k2 = three(POSITIONS, k, mask)
    n0, n1, n2 = three(POSITIONS, n, mask)
    p0, p1, p2 = three(POINT, m, mask)
    # Distance and position: the vector from the second atom, or from the point.
    far = kind == DISTANCE
    d0, d1, d2 = i0 - tl.where(far, j0, p0), i1 - tl.where(far, j1, p1), i2 - tl.where(far, j2, p2)
    length = tl.sqrt(d0 * d0 + d1 * d1 + d2 * d2)
    over = tl.where(far, 1.0 - reference / length, 1.0)
    u0, u1, u2 = -stiffness * over * d0, -stiffness * over * d1, -stiffness * over * d2
    straight = tl.where(far, length - reference, length)
    virial = tl.where(far, -stiffness * straight * length, 0.0)
    # Vectors between consecutive atoms: f, g, h.
    f0, f1, f2 = j0 - i0, j1 - i1, j2 - i2
    g0, g1, g2 = k0 - j0, k1 - j1, k2 - j2
    h0, h1, h2 = n0 - k0, n1 - k1, n2 - k2
    a0, a1, a2 = cross(f0, f1, f2, g0, g1, g2)
    b0, b1, b2 = cross(g0, g1, g2, h0, h1, h2)
    aa, bb = a0 * a0 + a1 * a1 + a2 * a2, b0 * b0 + b1 * b1 + b2 * b2
    ff, gg = f0 * f0 + f1 * f1 + f2 * f2, g0 * g0 + g1 * g1 + g2 * g2
    fg, gh = f0 * g0 + f1 * g1 + f2 * g2, g0 * h0 + g1 * h1 + g2 * h2
    middle = tl.sqrt(gg)
    bent = kind == ANGLE
    # The angle at the second atom has the vectors -f and g: sine |a|, cosine -f·g.
    y = tl.where(bent, tl.sqrt(aa), middle * (f0 * b0 + f1 * b1 + f2 * b2))
    x = tl.where(bent, -fg, a0 * b0 + a1 * b1 + a2 * b2)
    size = tl.sqrt(x * x + y * y)
    sine, cosine = y / size, x / size
    own_sine, own_cosine = tl.sin(reference), tl.cos(reference)
    turned = polar_angle(sine * own_cosine - cosine * own_sine, cosine * own_cosine + sine * own_sine)
    pull = -stiffness * turned
    # Angle: dθ/dr₁ = f × a / (|f|² |a|), dθ/dr₃ = g × a / (|g|² |a|).
    normal = tl.sqrt(aa)
    v0, v1, v2 = cross(f0, f1, f2, a0, a1, a2)
    w0, w1, w2 = cross(g0, g1, g2, a0, a1, a2)
    one, other = pull / (ff * normal), pull / (gg * normal)
    # Torsion: dφ/dr₁ = -|g| a / |a|², dφ/dr₄ = |g| b / |b|².
    q, r = -pull * middle / aa, pull * middle / bb
    before, after = fg / gg, gh / gg
    x0, x1, x2 = tl.where(bent, one * v0, q * a0), tl.where(bent, one * v1, q * a1), tl.where(bent, one * v2, q * a2)
    z0, z1, z2 = tl.where(bent, 0.0, r * b0), tl.where(bent, 0.0, r * b1), tl.where(bent, 0.0, r * b2)
    y0 = tl.where(bent, -x0 - other * w0, -x0 * (1.0 + before) + z0 * after)
    y1 = tl.where(bent, -x1 - other * w1, -x1 * (1.0 + before) + z1 * after)
    y2 = tl.where(bent, -x2 - other * w2, -x2 * (1.0 + before) + z2 * after)
    # All kinds: an angle has no fourth atom, a distance no third one, a position no second one.
    turning = bent | (kind == TORSION)
    x0, x1, x2 = tl.where(turning, x0, u0), tl.where(turning, x1, u1), tl.where(turning, x2, u2)
    y0 = tl.where(turning, y0, tl.where(far, -u0, 0.0))
    y1 = tl.where(turning, y1, tl.where(far, -u1, 0.0))
    y2 = tl.where(turning, y2, tl.where(far, -u2, 0.0))
    z0, z1, z2 = tl.where(turning, z0, 0.0), tl.where(turning, z1, 0.0), tl.where(turning, z2, 0.0)
    difference = tl.where(turning, turned, straight)
    tl.store(TERM_ENERGY + m, 0.5 * stiffness * difference * difference, mask=mask)
    tl.store(TERM_VIRIAL + m, virial, mask=mask)
    store_three(TERM_FORCES, 4 * m, x0, x1, x2, mask)
    store_three(TERM_FORCES, 4 * m + 1, y0, y1, y2, mask)
    c0, c1, c2 = (
        tl.where(turning, -x0 - y0 - z0, 0.0),
        tl.where(turning, -x1 - y1 - z1, 0.0),
        tl.where(turning, -x2 - y2 - z2, 0.0),
    )
    store_three(TERM_FORCES, 4 * m + 2, c0, c1, c2, mask)
    store_three(TERM_FORCES, 4 * m + 3, z0, z1, z2, mask)
    total = x0 + x1 + x2 + y0 + y1 + y2 + z0 + z1 + z2
    bad = mask & ((total - total) != 0.0)
    count = tl.sum(bad.to(tl.int64), 0)
    if count > 0:
        tl.atomic_add(FLAGS + NOT_FINITE, count)
        tl.atomic_min(FLAGS + FIRST_BAD, tl.min(tl.where(bad, i, 9223372036854775807), 0))


@triton.jit
def add_terms(
    TERM_ENERGY, TERM_VIRIAL, TERM_FORCES, ATOM_STARTS, SLOTS, SYSTEM_STARTS, FORCES, ENERGY, VIRIAL,
    num_atoms, num_systems, atom_programs, BLOCK: tl.constexpr,
):  # fmt: skip
    """Adds the forces of its terms to each atom; then, in one program for each structure, sums their energies."""
    program = tl.program_id(0)
    if program < atom_programs:
        i = (program * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
        mask = i < num_atoms
        start = tl.load(ATOM_STARTS + i, mask=mask, other=0)
        count = tl.load(ATOM_STARTS + i + 1, mask=mask, other=0) - start
        x, y, z = three(FORCES, i, mask)
        for number in range(tl.max(count, 0)):
            own = mask & (number < count)
            slot = tl.load(SLOTS + start + number, mask=own, other=0)
            f0, f1, f2 = three(TERM_FORCES, slot, own)
            x, y, z = x + f0, y + f1, z + f2
        store_three(FORCES, i, x, y, z, mask)
    else:
        system = program - atom_programs
        first, end = tl.load(SYSTEM_STARTS + system), tl.load(SYSTEM_STARTS + system + 1)
        energy, virial = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
        for low in range(first, end, BLOCK):
            m = (low + tl.arange(0, BLOCK)).to(tl.int64)
            energy += tl.load(TERM_ENERGY + m, mask=m < end, other=0.0)
            virial += tl.load(TERM_VIRIAL + m, mask=m < end, other=0.0)
        tl.store(ENERGY + system, tl.sum(energy, 0))
        tl.store(VIRIAL + system, tl.sum(virial, 0))
