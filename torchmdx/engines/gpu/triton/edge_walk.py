"""Walking the edges of a row: what the kernels that sum over neighbours do before they add anything up.

Kernels of many atoms walk ROWS rows side by side, DEPTH edges of each at a time: blocks of edges e are [ROWS,DEPTH].
Kernels of few atoms walk one row: blocks are [DEPTH]. The functions that take e accept both; with channels, blocks are
[ROWS,DEPTH,C] or [DEPTH,C]. An edge beyond the cutoff, which has no interval in the filter table, is not `inside`.
"""

import triton
import triton.language as tl

from torchmdx.engines.gpu.triton.nine import load3, store3

# Bits of the coefficient of t⁴ in a word that it shares with that of t⁵ (weights.py).
LEADING = tl.constexpr(18)


@triton.jit
def polynomial(entry, stride: tl.constexpr, t, mask, degree: tl.constexpr):
    """Σ_q a_q t^q with the coefficients a_q at entry + q stride."""
    value = tl.load(entry + degree * stride, mask=mask, other=0.0)
    for q in tl.static_range(1, degree + 1):
        value = value * t + tl.load(entry + (degree - q) * stride, mask=mask, other=0.0)
    return value


@triton.jit
def polynomial_and_slope(entry, stride: tl.constexpr, t, mask, degree: tl.constexpr):
    """The polynomial and its derivative in t."""
    slope = tl.load(entry + degree * stride, mask=mask, other=0.0)
    value = slope * t + tl.load(entry + (degree - 1) * stride, mask=mask, other=0.0)
    for q in tl.static_range(2, degree + 1):
        slope = slope * t + value
        value = value * t + tl.load(entry + (degree - q) * stride, mask=mask, other=0.0)
    return value, slope


@triton.jit
def filter_part(entry, part: tl.constexpr, t, mask, channels: tl.constexpr, degree: tl.constexpr):
    """Σ_q a_q t^q of one part from the table's interval at `entry`, laid out [degree+1,3,channels] or packed."""
    entry += part * channels
    if entry.dtype.element_ty != tl.float32:
        a0, a1, a2, a3, a4, a5 = unpack(entry, mask, channels)
        value = ((((a5 * t + a4) * t + a3) * t + a2) * t + a1) * t + a0
    else:
        value = polynomial(entry, 3 * channels, t, mask, degree)
    return value


@triton.jit
def filters(entry, t, mask, channels: tl.constexpr, degree: tl.constexpr):
    """The filters of all three parts."""
    scalar = filter_part(entry, 0, t, mask, channels, degree)
    vector = filter_part(entry, 1, t, mask, channels, degree)
    return scalar, vector, filter_part(entry, 2, t, mask, channels, degree)


@triton.jit
def filter_and_slope(entry, part: tl.constexpr, t, mask, channels: tl.constexpr, degree: tl.constexpr):
    """The filter and its slope in t, the derivative of the same polynomial."""
    entry += part * channels
    if entry.dtype.element_ty != tl.float32:
        a0, a1, a2, a3, a4, slope = unpack(entry, mask, channels)
        value = slope * t + a4
        slope, value = slope * t + value, value * t + a3
        slope, value = slope * t + value, value * t + a2
        slope, value = slope * t + value, value * t + a1
        slope, value = slope * t + value, value * t + a0
    else:
        value, slope = polynomial_and_slope(entry, 3 * channels, t, mask, degree)
    return value, slope


@triton.jit
def unpack(entry, mask, channels: tl.constexpr):
    """Six coefficients from the five words of `dense_table`."""
    a0 = tl.load(entry, mask=mask, other=0).to(tl.float32, bitcast=True)
    a1 = tl.load(entry + 3 * channels, mask=mask, other=0).to(tl.float32, bitcast=True)
    a2 = tl.load(entry + 6 * channels, mask=mask, other=0).to(tl.float32, bitcast=True)
    a3 = tl.load(entry + 9 * channels, mask=mask, other=0).to(tl.float32, bitcast=True)
    last = tl.load(entry + 12 * channels, mask=mask, other=0)
    return a0, a1, a2, a3, last.to(tl.float32, bitcast=True), (last << LEADING).to(tl.float32, bitcast=True)


@triton.jit
def row_ends(ROW_PTR, row, valid):
    """The first edge of each row and the one after its last; both 0 for rows that do not exist."""
    return tl.load(ROW_PTR + row, mask=valid, other=0), tl.load(ROW_PTR + row + 1, mask=valid, other=0)


@triton.jit
def edges_at(start, end, step, DEPTH: tl.constexpr):
    """Edges [ROWS,DEPTH] that are `step` edges into their rows, and which of them exist."""
    e = (start + step)[:, None] + tl.arange(0, DEPTH)[None, :]
    return e, e < end[:, None]


@triton.jit
def read_edge(e, mask, KNOT, SOURCE, PLACE, TABLE, c, CHANNELS: tl.constexpr, DEGREE: tl.constexpr):
    """(inside, source, entry, t) of edges e.

    Whether they are within the cutoff, their source atoms (int64, without a dimension of channels), where their
    intervals of the table begin for channels c, and the places t in the intervals.
    """
    knot = tl.load(KNOT + e, mask=mask, other=-1)
    j = tl.load(SOURCE + e, mask=mask, other=0).to(tl.int64)
    t = tl.expand_dims(tl.load(PLACE + e.to(tl.int64) * 4 + 3, mask=mask, other=0.0), -1)
    WORDS: tl.constexpr = 5 if TABLE.dtype.element_ty == tl.uint32 else DEGREE + 1
    entry = TABLE + tl.expand_dims(knot.to(tl.int64), -1) * (WORDS * 3 * CHANNELS) + c
    return tl.expand_dims(knot >= 0, -1), j, entry, t


@triton.jit
def direction(e, mask, PLACE):
    """Unit vectors from target to source, one block for each component."""
    return load3(PLACE + e.to(tl.int64) * 4, mask, 1)


@triton.jit
def sum_of_slices(PULL, e, mask, capacity, SLICES: tl.constexpr):
    """∂E/∂t of edges e that the messages of all layers left, in slices of channels: PULL [SLICES,capacity]."""
    pull = tl.load(PULL + e, mask=mask, other=0.0)
    for part in tl.static_range(1, SLICES):
        pull += tl.load(PULL + part * capacity.to(tl.int64) + e, mask=mask, other=0.0)
    return pull


@triton.jit
def add_scalar(m0, f, y, inside):
    """m + Σ f y over the edges of a row, for the scalar part. y: pointer to the neighbours' nine components."""
    return m0 + tl.sum(f * tl.load(y, mask=inside, other=0.0), 1)


@triton.jit
def add_vector(m1, m2, m3, f, y, inside, CHANNELS: tl.constexpr):
    """The same for the vector part."""
    m1 += tl.sum(f * tl.load(y + CHANNELS, mask=inside, other=0.0), 1)
    m2 += tl.sum(f * tl.load(y + 2 * CHANNELS, mask=inside, other=0.0), 1)
    m3 += tl.sum(f * tl.load(y + 3 * CHANNELS, mask=inside, other=0.0), 1)
    return m1, m2, m3


@triton.jit
def add_symmetric(m4, m5, m6, m7, m8, f, y, inside, CHANNELS: tl.constexpr):
    """The same for the symmetric part."""
    m4 += tl.sum(f * tl.load(y + 4 * CHANNELS, mask=inside, other=0.0), 1)
    m5 += tl.sum(f * tl.load(y + 5 * CHANNELS, mask=inside, other=0.0), 1)
    m6 += tl.sum(f * tl.load(y + 6 * CHANNELS, mask=inside, other=0.0), 1)
    m7 += tl.sum(f * tl.load(y + 7 * CHANNELS, mask=inside, other=0.0), 1)
    m8 += tl.sum(f * tl.load(y + 8 * CHANNELS, mask=inside, other=0.0), 1)
    return m4, m5, m6, m7, m8


@triton.jit
def add_and_dot(a, s, f, y, g, inside):
    """One component: a + Σ f g over the edges of a row, and s + y g, what the filter's gradient is made of.

    Args:
        g: Pointer to the neighbours' component.
        y: The row's own, [ROWS,C].
    """
    g = tl.load(g, mask=inside, other=0.0)
    return a + tl.sum(f * g, 1), s + y[:, None, :] * g


@triton.jit
def dot(a, f, y, g, inside):
    """The same for the first component of a part."""
    g = tl.load(g, mask=inside, other=0.0)
    return a + tl.sum(f * g, 1), y[:, None, :] * g


@triton.jit
def add_and_dot_vector(a1, a2, a3, f, y, g, inside, CHANNELS: tl.constexpr):
    """`add_and_dot` of the vector part. y: the row's nine components; g: pointer to the neighbours' nine."""
    a1, s = dot(a1, f, y[1], g + CHANNELS, inside)
    a2, s = add_and_dot(a2, s, f, y[2], g + 2 * CHANNELS, inside)
    a3, s = add_and_dot(a3, s, f, y[3], g + 3 * CHANNELS, inside)
    return a1, a2, a3, s


@triton.jit
def add_and_dot_symmetric(a4, a5, a6, a7, a8, f, y, g, inside, CHANNELS: tl.constexpr):
    """`add_and_dot` of the symmetric part."""
    a4, s = dot(a4, f, y[4], g + 4 * CHANNELS, inside)
    a5, s = add_and_dot(a5, s, f, y[5], g + 5 * CHANNELS, inside)
    a6, s = add_and_dot(a6, s, f, y[6], g + 6 * CHANNELS, inside)
    a7, s = add_and_dot(a7, s, f, y[7], g + 7 * CHANNELS, inside)
    a8, s = add_and_dot(a8, s, f, y[8], g + 8 * CHANNELS, inside)
    return a4, a5, a6, a7, a8, s


@triton.jit
def pair_embedding(target, element, inside, SOURCES, c, CHANNELS: tl.constexpr):
    """Z_ij = U[Z_i] + V[Z_j] of edges, from target = U[Z_i] and the element Z_j of the source."""
    return target + tl.load(SOURCES + tl.expand_dims(element, -1) * CHANNELS + c, mask=inside, other=0.0)


@triton.jit
def store_edge_gradient(
    e, mask, inside, entry, t, pair, pull, dx, dy, dz, g, STRETCH, HALF, CHANNELS: tl.constexpr, DEGREE: tl.constexpr
):  # fmt: skip
    """h_e = (pull + ∂E/∂t) dx/dr d + (1 - d dᵀ)/r ∂E/∂d, in HALF.

    ∂E/∂t and ∂E/∂d are those of A_i = Σ_j f(r_ij) Z_ij (1, d, d dᵀ - 1/3), from the gradient g in A_i, nine blocks that
    broadcast against those of the edges. pull: ∂E/∂t of everything else. pair: Z_ij. dx, dy, dz: d.
    """
    g0, g1, g2, g3, g4, g5, g6, g7, g8 = g
    x, y, z = tl.expand_dims(dx, -1), tl.expand_dims(dy, -1), tl.expand_dims(dz, -1)
    f, along = filter_and_slope(entry, 0, t, inside, CHANNELS, DEGREE)
    along = along * g0
    f, df = filter_and_slope(entry, 1, t, inside, CHANNELS, DEGREE)
    along += df * (g1 * x + g2 * y + g3 * z)
    vx, vy, vz = f * g1, f * g2, f * g3
    f, df = filter_and_slope(entry, 2, t, inside, CHANNELS, DEGREE)
    # Half the gradient of dᵀ G d: contracted with d twice, it is the value itself.
    qx = g4 * x + 0.5 * (g5 * y + g6 * z)
    qy = g7 * y + 0.5 * (g5 * x + g8 * z)
    qz = 0.5 * (g6 * x + g8 * y)
    third = (g4 + g7) * 0.3333333333333333
    along += df * (qx * x + qy * y + qz * z - third)
    pull += tl.sum(along * pair, -1)
    sx = tl.sum((vx + 2.0 * f * qx) * pair, -1)
    sy = tl.sum((vy + 2.0 * f * qy) * pair, -1)
    sz = tl.sum((vz + 2.0 * f * qz) * pair, -1)
    store_half_gradient(e, mask, pull, sx, sy, sz, dx, dy, dz, STRETCH, HALF)


@triton.jit
def store_half_gradient(e, mask, pull, sx, sy, sz, dx, dy, dz, STRETCH, HALF):
    """h_e in HALF from ∂E/∂t = pull and ∂E/∂d = s at the direction d."""
    stretch = tl.load(STRETCH + e.to(tl.int64) * 2, mask=mask, other=0.0)
    inverse = tl.load(STRETCH + e.to(tl.int64) * 2 + 1, mask=mask, other=0.0)
    radial = pull * stretch - (sx * dx + sy * dy + sz * dz) * inverse
    half = radial * dx + sx * inverse, radial * dy + sy * inverse, radial * dz + sz * inverse
    store3(HALF + e.to(tl.int64) * 3, half, mask, 1)
