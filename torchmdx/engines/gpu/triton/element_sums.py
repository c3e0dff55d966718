"""The embedding's sum over neighbours by their elements, where few elements are present, and its gradient.

All filters of the embedding are combinations of K functions of the distance, f_p(r) = Σ_k φ_k(r) W_p[k] for part p, and
Z_ij = U[Z_i] + V[Z_j]. So the sum A_i of embedding_sum.py is

::

    A_i = Σ_s (U[Z_i] + V[s]) Σ_k W[k] B_i[s,k],    B_i[s,k] = Σ_{j of element s} φ_k(r_ij) (1, d, d dᵀ - 1/3)

and an edge evaluates K functions in place of 3 C filters. The products with W run on tensor cores.

::

    | buffer | shape | holds |
    |---|---|---|
    | SLOTS | [elements] | s of an element, -1 if it has none; int32 |
    | TABLE | [n,degree+1,K] | φ in the intervals of the filters' table |
    | SUMS | [N,9,S,K] | B; in the backward pass its gradient |
    | RARE | [N] | 1 for rows with an edge that is too short for φ, or a neighbour without a slot; int32 |

Rare rows are left to the kernels of embedding_sum.py.
"""

import triton
import triton.language as tl

from torchmdx.engines.gpu.triton.edge_walk import (
    direction,
    edges_at,
    polynomial,
    polynomial_and_slope,
    row_ends,
    store_half_gradient,
    sum_of_slices,
)
from torchmdx.engines.gpu.triton.nine import add9, nine, store9, sum_edges
from torchmdx.engines.gpu.triton.tf32_product import nearest


@triton.jit
def read_element_edge(
    e, mask, NUMBERS, SLOTS, KNOT, SOURCE, PLACE, TABLE, k, FUNCTIONS: tl.constexpr, DEGREE: tl.constexpr
):
    """(knot, slot, entry, t) of edges e.

    The interval, -1 beyond the cutoff; the slot of the source's element; where the interval begins for functions k; the
    place in it.
    """
    knot = tl.load(KNOT + e, mask=mask, other=-1)
    j = tl.load(SOURCE + e, mask=mask, other=0)
    t = tl.expand_dims(tl.load(PLACE + e.to(tl.int64) * 4 + 3, mask=mask, other=0.0), -1)
    slot = tl.load(SLOTS + tl.load(NUMBERS + j, mask=mask, other=0), mask=mask, other=0)
    entry = TABLE + tl.expand_dims(knot * ((DEGREE + 1) * FUNCTIONS), -1) + k
    return knot, slot, entry, t


@triton.jit
def add_directions(a, m, x, y, z, xx, xy, xz, yy, yz):
    """a + m (1, d, d dᵀ - 1/3), nine blocks."""
    return add9(a, (m, m * x, m * y, m * z, m * xx, m * xy, m * xz, m * yy, m * yz))


@triton.jit(do_not_specialize=["num_atoms", "last_knot"])
def element_sums(
    NUMBERS, SLOTS, SUMS, RARE, TABLE, ROW_PTR, SOURCE, KNOT, PLACE, num_atoms, last_knot,
    FUNCTIONS: tl.constexpr, DEGREE: tl.constexpr, ELEMENTS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    """SUMS and RARE. A program takes ROWS adjacent atoms and GROUP slots, DEPTH edges of each row at a time.

    Args:
        last_knot: The interval of the shortest distances that φ describes.
    """
    GROUPS: tl.constexpr = (ELEMENTS + GROUP - 1) // GROUP
    block, first = tl.program_id(0) // GROUPS, tl.program_id(0) % GROUPS * GROUP
    if num_atoms.dtype.is_ptr():
        num_atoms = tl.load(num_atoms)
        if block * ROWS >= num_atoms:
            return
    row = block * ROWS + tl.arange(0, ROWS)
    k2 = tl.arange(0, FUNCTIONS)[None, :]
    k = k2[:, None, :]
    valid = row < num_atoms
    start, end = row_ends(ROW_PTR, row, valid)
    a = nine(tl.zeros((ROWS, DEPTH, FUNCTIONS), tl.float32))
    b, c, d = a, a, a
    rare = tl.zeros((ROWS, DEPTH), tl.int32)
    for step in range(0, tl.max(end - start, 0), DEPTH):
        e, mask = edges_at(start, end, step, DEPTH)
        knot, slot, entry, t = read_element_edge(
            e, mask, NUMBERS, SLOTS, KNOT, SOURCE, PLACE, TABLE, k, FUNCTIONS, DEGREE
        )
        rare |= ((knot > last_knot) | ((knot >= 0) & (slot < 0))).to(tl.int32)
        f = polynomial(entry, FUNCTIONS, t, (knot >= 0)[:, :, None], DEGREE)
        x, y, z = direction(e, mask, PLACE)
        xx, yy = x * x - 0.3333333333333333, y * y - 0.3333333333333333
        xy, xz, yz = (x * y)[:, :, None], (x * z)[:, :, None], (y * z)[:, :, None]
        x, y, z, xx, yy = x[:, :, None], y[:, :, None], z[:, :, None], xx[:, :, None], yy[:, :, None]
        of = (slot - first)[:, :, None]
        a = add_directions(a, tl.where(of == 0, f, 0.0), x, y, z, xx, xy, xz, yy, yz)
        if GROUP > 1:
            b = add_directions(b, tl.where(of == 1, f, 0.0), x, y, z, xx, xy, xz, yy, yz)
        if GROUP > 2:
            c = add_directions(c, tl.where(of == 2, f, 0.0), x, y, z, xx, xy, xz, yy, yz)
        if GROUP > 3:
            d = add_directions(d, tl.where(of == 3, f, 0.0), x, y, z, xx, xy, xz, yy, yz)
    STRIDE: tl.constexpr = ELEMENTS * FUNCTIONS
    at = SUMS + row.to(tl.int64)[:, None] * (9 * STRIDE) + first * FUNCTIONS + k2
    mask = valid[:, None]
    store9(at, sum_edges(a), mask, STRIDE)
    if GROUP > 1:
        store9(at + FUNCTIONS, sum_edges(b), mask & (first + 1 < ELEMENTS), STRIDE)
    if GROUP > 2:
        store9(at + 2 * FUNCTIONS, sum_edges(c), mask & (first + 2 < ELEMENTS), STRIDE)
    if GROUP > 3:
        store9(at + 3 * FUNCTIONS, sum_edges(d), mask & (first + 3 < ELEMENTS), STRIDE)
    if first == 0:
        tl.store(RARE + row, tl.max(rare, 1), mask=valid)


@triton.jit
def add_product(acc, x, W, SMALL, at):
    """acc + x w, as tf32_product.product; parts are rounded to the nearest, since sums of many edges cancel."""
    w, w_rest = tl.load(W + at).T, tl.load(SMALL + at).T
    big = nearest(x)
    total = tl.dot(x - big, w, input_precision="tf32")
    total = tl.dot(big, w_rest, total, input_precision="tf32")
    return acc + tl.dot(big, w, total, input_precision="tf32")


@triton.jit(do_not_specialize=["num_atoms"])
def multiply_sums(
    SUMS, W, SMALL, WV, WV_SMALL, NUMBERS, TARGETS, SOURCES, OWN, A, num_atoms,
    CHANNELS: tl.constexpr, FUNCTIONS: tl.constexpr, ELEMENTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A [N,9,C] = U[Z_i] (Σ_s B W) + Σ_s B W V[s] from B = SUMS, with W [3,C,K] and W V [3,C,S,K] split.

    A program makes one component of ROWS atoms.
    """
    component = tl.program_id(0) % 9
    block = tl.program_id(0) // 9
    if num_atoms.dtype.is_ptr():
        num_atoms = tl.load(num_atoms)
        if block // (CHANNELS // COLUMNS) * ROWS >= num_atoms:
            return
    row = block // (CHANNELS // COLUMNS) * ROWS + tl.arange(0, ROWS)
    n = block % (CHANNELS // COLUMNS) * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, FUNCTIONS)[None, :]
    part = (component > 0).to(tl.int32) + (component > 3).to(tl.int32)
    valid = (row < num_atoms)[:, None]
    STRIDE: tl.constexpr = ELEMENTS * FUNCTIONS
    base = SUMS + row.to(tl.int64)[:, None] * (9 * STRIDE) + component * STRIDE + k
    column = part * CHANNELS + n[:, None]
    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    total = tl.zeros((ROWS, FUNCTIONS), tl.float32)
    for s in range(ELEMENTS):
        x = tl.load(base + s * FUNCTIONS, mask=valid, other=0.0)
        total += x
        acc = add_product(acc, x, WV, WV_SMALL, column * STRIDE + s * FUNCTIONS + k)
    element = tl.load(NUMBERS + row, mask=row < num_atoms, other=0)[:, None]
    target = tl.load(TARGETS + element * CHANNELS + n[None, :])
    acc += target * add_product(tl.zeros((ROWS, COLUMNS), tl.float32), total, W, SMALL, column * FUNCTIONS + k)
    if component == 0:
        # The message of an atom to itself has no direction, so it contributes to the scalar part only.
        acc += tl.load(OWN + n)[None, :] * (target + tl.load(SOURCES + element * CHANNELS + n[None, :]))
    tl.store(A + row.to(tl.int64)[:, None] * (9 * CHANNELS) + component * CHANNELS + n[None, :], acc, mask=valid)


@triton.jit(do_not_specialize=["num_atoms"])
def multiply_sums_back(
    GA, W, SMALL, WV, WV_SMALL, NUMBERS, TARGETS, SUMS, num_atoms,
    CHANNELS: tl.constexpr, FUNCTIONS: tl.constexpr, ELEMENTS: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """The gradient in SUMS from GA [N,9,C], with the matrices transposed: W [3,K,C] and W V [3,S,K,C].

    A program takes one component of ROWS atoms, two slots at a time.
    """
    component = tl.program_id(0) % 9
    block = tl.program_id(0) // 9
    if num_atoms.dtype.is_ptr():
        num_atoms = tl.load(num_atoms)
        if block * ROWS >= num_atoms:
            return
    row = block * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, FUNCTIONS)
    part = (component > 0).to(tl.int32) + (component > 3).to(tl.int32)
    valid = (row < num_atoms)[:, None]
    element = tl.load(NUMBERS + row, mask=row < num_atoms, other=0)[:, None]
    base = GA + row.to(tl.int64)[:, None] * (9 * CHANNELS) + component * CHANNELS
    STRIDE: tl.constexpr = ELEMENTS * FUNCTIONS
    out = SUMS + row.to(tl.int64)[:, None] * (9 * STRIDE) + component * STRIDE + k[None, :]
    at = part * (FUNCTIONS * CHANNELS) + k[:, None] * CHANNELS
    slot = part * (STRIDE * CHANNELS) + k[:, None] * CHANNELS
    NEXT: tl.constexpr = FUNCTIONS * CHANNELS
    common = tl.zeros((ROWS, FUNCTIONS), tl.float32)
    a, b = common, common
    for first in range(0, CHANNELS, STEP):
        n = first + tl.arange(0, STEP)[None, :]
        g = tl.load(base + n, mask=valid, other=0.0)
        common = add_product(common, g * tl.load(TARGETS + element * CHANNELS + n), W, SMALL, at + n)
        a = add_product(a, g, WV, WV_SMALL, slot + n)
        if ELEMENTS > 1:
            b = add_product(b, g, WV, WV_SMALL, slot + NEXT + n)
    tl.store(out, a + common, mask=valid)
    if ELEMENTS > 1:
        tl.store(out + FUNCTIONS, b + common, mask=valid)
    for s in range(2, ELEMENTS, 2):
        a, b = common, common
        other = tl.minimum(s + 1, ELEMENTS - 1)
        for first in range(0, CHANNELS, STEP):
            n = first + tl.arange(0, STEP)[None, :]
            g = tl.load(base + n, mask=valid, other=0.0)
            a = add_product(a, g, WV, WV_SMALL, slot + s * (FUNCTIONS * CHANNELS) + n)
            b = add_product(b, g, WV, WV_SMALL, slot + other * (FUNCTIONS * CHANNELS) + n)
        tl.store(out + s * FUNCTIONS, a, mask=valid)
        tl.store(out + other * FUNCTIONS, b, mask=valid & (other > s))


@triton.jit(do_not_specialize=["num_atoms", "capacity"])
def element_sums_gradient(
    NUMBERS, SLOTS, SUMS, RARE, TABLE, ROW_PTR, SOURCE, KNOT, PLACE, STRETCH, PULL, HALF, num_atoms, capacity,
    FUNCTIONS: tl.constexpr, DEGREE: tl.constexpr, ELEMENTS: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
    SLICES: tl.constexpr,
):  # fmt: skip
    """h_e of the edges of rows that are not rare, from the gradient in SUMS; as embedding_sum.surroundings_gradient."""
    if num_atoms.dtype.is_ptr():
        num_atoms = tl.load(num_atoms)
        if tl.program_id(0) * ROWS >= num_atoms:
            return
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, FUNCTIONS)[None, None, :]
    valid = row < num_atoms
    valid = valid & (tl.load(RARE + row, mask=valid, other=0) == 0)
    start, end = row_ends(ROW_PTR, row, valid)
    STRIDE: tl.constexpr = ELEMENTS * FUNCTIONS
    sums = SUMS + row.to(tl.int64)[:, None, None] * (9 * STRIDE) + k
    for step in range(0, tl.max(end - start, 0), DEPTH):
        e, mask = edges_at(start, end, step, DEPTH)
        knot, slot, entry, t = read_element_edge(
            e, mask, NUMBERS, SLOTS, KNOT, SOURCE, PLACE, TABLE, k, FUNCTIONS, DEGREE
        )
        inside = (knot >= 0)[:, :, None]
        f, df = polynomial_and_slope(entry, FUNCTIONS, t, inside, DEGREE)
        dx, dy, dz = direction(e, mask, PLACE)
        pull = sum_of_slices(PULL, e, mask, capacity, SLICES)
        g = sums + slot[:, :, None] * FUNCTIONS
        x, y, z = dx[:, :, None], dy[:, :, None], dz[:, :, None]
        # v: the gradient in f d, of the vector and the symmetric part. From it that in f, in the order of the loads.
        g1 = tl.load(g + STRIDE, mask=inside, other=0.0)
        g2 = tl.load(g + 2 * STRIDE, mask=inside, other=0.0)
        g3 = tl.load(g + 3 * STRIDE, mask=inside, other=0.0)
        along = g1 * x + g2 * y + g3 * z
        g4 = tl.load(g + 4 * STRIDE, mask=inside, other=0.0)
        g5 = tl.load(g + 5 * STRIDE, mask=inside, other=0.0)
        g6 = tl.load(g + 6 * STRIDE, mask=inside, other=0.0)
        g7 = tl.load(g + 7 * STRIDE, mask=inside, other=0.0)
        g8 = tl.load(g + 8 * STRIDE, mask=inside, other=0.0)
        vx = g1 + g4 * (2.0 * x) + g5 * y + g6 * z
        vy = g2 + g5 * x + g7 * (2.0 * y) + g8 * z
        vz = g3 + g6 * x + g8 * y
        along = 0.5 * (along + (vx * x + vy * y + vz * z)) - (g4 + g7) * 0.3333333333333333
        along += tl.load(g, mask=inside, other=0.0)
        pull += tl.sum(df * along, 2)
        sx, sy, sz = tl.sum(f * vx, 2), tl.sum(f * vy, 2), tl.sum(f * vz, 2)
        store_half_gradient(e, mask, pull, sx, sy, sz, dx, dy, dz, STRETCH, HALF)
