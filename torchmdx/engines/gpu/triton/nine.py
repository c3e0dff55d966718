"""Nine-component tensors inside kernels: tuples of nine blocks, and the adjoint of every map between them.

The layout is that of torchmdx.models.tensors: a scalar s, a vector a, and five entries of a symmetric traceless matrix
q. In memory the nine blocks of an atom lie one after another, `channels` apart.
"""

import triton
import triton.language as tl


@triton.jit
def load(pointer, mask):
    """A block; 0 where masked. mask: None reads all of it."""
    if mask is None:
        x = tl.load(pointer)
    else:
        x = tl.load(pointer, mask=mask, other=0.0)
    return x


@triton.jit
def load9(pointer, mask, channels: tl.constexpr):
    """Nine blocks, as `load` reads them."""
    return (
        load(pointer, mask), load(pointer + channels, mask), load(pointer + 2 * channels, mask),
        load(pointer + 3 * channels, mask), load(pointer + 4 * channels, mask), load(pointer + 5 * channels, mask),
        load(pointer + 6 * channels, mask), load(pointer + 7 * channels, mask), load(pointer + 8 * channels, mask),
    )  # fmt: skip


@triton.jit
def store9(pointer, x, mask, channels: tl.constexpr):
    """Writes nine blocks."""
    tl.store(pointer, x[0], mask=mask)
    tl.store(pointer + channels, x[1], mask=mask)
    tl.store(pointer + 2 * channels, x[2], mask=mask)
    tl.store(pointer + 3 * channels, x[3], mask=mask)
    tl.store(pointer + 4 * channels, x[4], mask=mask)
    tl.store(pointer + 5 * channels, x[5], mask=mask)
    tl.store(pointer + 6 * channels, x[6], mask=mask)
    tl.store(pointer + 7 * channels, x[7], mask=mask)
    tl.store(pointer + 8 * channels, x[8], mask=mask)


@triton.jit
def load3(pointer, mask, channels: tl.constexpr):
    """Three blocks, one for each part, as `load` reads them."""
    return load(pointer, mask), load(pointer + channels, mask), load(pointer + 2 * channels, mask)


@triton.jit
def store3(pointer, x, mask, channels: tl.constexpr):
    """Writes three blocks."""
    tl.store(pointer, x[0], mask=mask)
    tl.store(pointer + channels, x[1], mask=mask)
    tl.store(pointer + 2 * channels, x[2], mask=mask)


@triton.jit
def nine(x):
    """The same block nine times."""
    return x, x, x, x, x, x, x, x, x


@triton.jit
def between(x):
    """Nine blocks [ROWS,C] as [ROWS,1,C], to be combined with blocks of edges."""
    return (
        x[0][:, None, :], x[1][:, None, :], x[2][:, None, :], x[3][:, None, :], x[4][:, None, :], x[5][:, None, :],
        x[6][:, None, :], x[7][:, None, :], x[8][:, None, :],
    )  # fmt: skip


@triton.jit
def sum_edges(x):
    """Nine blocks [ROWS,DEPTH,C] summed over the edges of each row."""
    return (
        tl.sum(x[0], 1), tl.sum(x[1], 1), tl.sum(x[2], 1), tl.sum(x[3], 1), tl.sum(x[4], 1), tl.sum(x[5], 1),
        tl.sum(x[6], 1), tl.sum(x[7], 1), tl.sum(x[8], 1),
    )  # fmt: skip


@triton.jit
def along(f, x, y, z):
    """f (1, d, d dᵀ - 1/3) for factors f of the three parts and directions d = (x, y, z)."""
    xx, yy = x * x - 0.3333333333333333, y * y - 0.3333333333333333
    return (
        f[0], f[1] * x, f[1] * y, f[1] * z, f[2] * xx, f[2] * (x * y), f[2] * (x * z), f[2] * yy, f[2] * (y * z),
    )  # fmt: skip


@triton.jit
def add9(x, y):
    """x + y."""
    return (
        x[0] + y[0], x[1] + y[1], x[2] + y[2], x[3] + y[3], x[4] + y[4], x[5] + y[5], x[6] + y[6], x[7] + y[7],
        x[8] + y[8],
    )  # fmt: skip


@triton.jit
def add_to_scalar(x, s):
    """x + s in the scalar part."""
    return x[0] + s, x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8]


@triton.jit
def scale9(x, factor):
    """One factor for all nine."""
    return scale_parts(x, factor, factor, factor)


@triton.jit
def scale_parts(x, f0, f1, f2):
    """One factor for each part."""
    return (x[0] * f0, x[1] * f1, x[2] * f1, x[3] * f1, x[4] * f2, x[5] * f2, x[6] * f2, x[7] * f2, x[8] * f2)


@triton.jit
def dot_parts(x, y):
    """Sums of products within each part: the gradient in a factor that scales the part."""
    vector = x[1] * y[1] + x[2] * y[2] + x[3] * y[3]
    symmetric = x[4] * y[4] + x[5] * y[5] + x[6] * y[6] + x[7] * y[7] + x[8] * y[8]
    return x[0] * y[0], vector, symmetric


@triton.jit
def part_norms(x):
    """Squared Frobenius norms of the three parts."""
    third = x[4] + x[7]
    symmetric = x[4] * x[4] + x[7] * x[7] + third * third + 2.0 * (x[5] * x[5] + x[6] * x[6] + x[8] * x[8])
    return 3.0 * x[0] * x[0], 2.0 * (x[1] * x[1] + x[2] * x[2] + x[3] * x[3]), symmetric


@triton.jit
def squared_norm(x):
    """Squared Frobenius norm."""
    scalar, vector, symmetric = part_norms(x)
    return scalar + vector + symmetric


@triton.jit
def part_norms_gradient(x, g0, g1, g2):
    """Gradient in x of g0 |s|² + g1 |a|² + g2 |q|²."""
    return (
        6.0 * x[0] * g0,
        4.0 * x[1] * g1,
        4.0 * x[2] * g1,
        4.0 * x[3] * g1,
        (4.0 * x[4] + 2.0 * x[7]) * g2,
        4.0 * x[5] * g2,
        4.0 * x[6] * g2,
        (4.0 * x[7] + 2.0 * x[4]) * g2,
        4.0 * x[8] * g2,
    )


@triton.jit
def normalise(x):
    """X̂ = X / (|X|² + 1)."""
    return scale9(x, 1.0 / (squared_norm(x) + 1.0))


@triton.jit
def normalise_gradient(x, inverse, g):
    """Gradient in X from the gradient g in X̂, given X̂ and inverse = 1 / (|X|² + 1)."""
    scalar, vector, symmetric = dot_parts(g, x)
    along = -(scalar + vector + symmetric)
    return add9(scale9(g, inverse), part_norms_gradient(x, along, along, along))


@triton.jit
def to_matrix(x):
    """Nine components to nine entries, row by row."""
    s, ax, ay, az, qxx, qxy, qxz, qyy, qyz = x
    return (s + qxx, qxy - az, qxz + ay, qxy + az, s + qyy, qyz - ax, qxz - ay, qyz + ax, s - qxx - qyy)


@triton.jit
def from_matrix(m):
    """Nine entries to nine components."""
    xx, xy, xz, yx, yy, yz, zx, zy, zz = m
    s = (xx + yy + zz) * (1.0 / 3.0)
    return (
        s,
        (zy - yz) * 0.5,
        (xz - zx) * 0.5,
        (yx - xy) * 0.5,
        xx - s,
        (xy + yx) * 0.5,
        (xz + zx) * 0.5,
        yy - s,
        (yz + zy) * 0.5,
    )


@triton.jit
def to_matrix_gradient(g):
    """Gradient in the entries from the gradient in the components: the adjoint of from_matrix."""
    gs, gax, gay, gaz, gqxx, gqxy, gqxz, gqyy, gqyz = g
    trace = (gs - gqxx - gqyy) * (1.0 / 3.0)
    return (
        trace + gqxx,
        (gqxy - gaz) * 0.5,
        (gqxz + gay) * 0.5,
        (gqxy + gaz) * 0.5,
        trace + gqyy,
        (gqyz - gax) * 0.5,
        (gqxz - gay) * 0.5,
        (gqyz + gax) * 0.5,
        trace,
    )


@triton.jit
def from_matrix_gradient(m):
    """Gradient in the components from the gradient in the entries: the adjoint of to_matrix."""
    xx, xy, xz, yx, yy, yz, zx, zy, zz = m
    return (xx + yy + zz, zy - yz, xz - zx, yx - xy, xx - zz, xy + yx, xz + zx, yy - zz, yz + zy)


@triton.jit
def transposed(m):
    """Entries of the transposed matrix."""
    return (m[0], m[3], m[6], m[1], m[4], m[7], m[2], m[5], m[8])


@triton.jit
def matmul(a, b):
    """Entries of the matrix product."""
    return (
        a[0] * b[0] + a[1] * b[3] + a[2] * b[6],
        a[0] * b[1] + a[1] * b[4] + a[2] * b[7],
        a[0] * b[2] + a[1] * b[5] + a[2] * b[8],
        a[3] * b[0] + a[4] * b[3] + a[5] * b[6],
        a[3] * b[1] + a[4] * b[4] + a[5] * b[7],
        a[3] * b[2] + a[4] * b[5] + a[5] * b[8],
        a[6] * b[0] + a[7] * b[3] + a[8] * b[6],
        a[6] * b[1] + a[7] * b[4] + a[8] * b[7],
        a[6] * b[2] + a[7] * b[5] + a[8] * b[8],
    )


@triton.jit
def square(x):
    """Components of XX."""
    m = to_matrix(x)
    return from_matrix(matmul(m, m))


@triton.jit
def square_gradient(x, g):
    """Gradient in x from the gradient g of XX: Ḡ Xᵀ + Xᵀ Ḡ."""
    t, m = transposed(to_matrix(x)), to_matrix_gradient(g)
    return from_matrix_gradient(add9(matmul(m, t), matmul(t, m)))


@triton.jit
def message_product(y, m, factor, reflections: tl.constexpr):
    """Components of factor (YM + MY) under O(3), of 2 YM under SO(3)."""
    a, b = to_matrix(y), to_matrix(m)
    if reflections:
        p = scale9(from_matrix(add9(matmul(a, b), matmul(b, a))), factor)
    else:
        p = scale9(from_matrix(matmul(a, b)), 2.0)
    return p


@triton.jit
def message_product_gradient(y, m, g, factor, reflections: tl.constexpr):
    """Gradients in y and m from the gradient g of their product."""
    a, b, h = transposed(to_matrix(y)), transposed(to_matrix(m)), to_matrix_gradient(g)
    if reflections:
        gy = scale9(from_matrix_gradient(add9(matmul(h, b), matmul(b, h))), factor)
        gm = scale9(from_matrix_gradient(add9(matmul(h, a), matmul(a, h))), factor)
    else:
        gy = scale9(from_matrix_gradient(matmul(h, b)), 2.0)
        gm = scale9(from_matrix_gradient(matmul(a, h)), 2.0)
    return gy, gm


@triton.jit
def charge_factor(CHARGE, SYSTEM, row, mask):
    """1 + q/10 of the system of each atom, [rows,1]."""
    system = tl.load(SYSTEM + row, mask=mask, other=0)
    return (1.0 + 0.1 * tl.load(CHARGE + system, mask=mask, other=0.0).to(tl.float32))[:, None]
