"""The embedding's sum over neighbours, A_i = Σ_j f(r_ij) Z_ij (1, d, d dᵀ - 1/3) + f(0) Z_ii, and its gradient.

Z_ij = U[Z_i] + V[Z_j] is linear in the embeddings of both elements: TARGETS = U and SOURCES = V [elements, C] are
tables that fit into the cache, so no tensors of neighbours are gathered.
"""

import triton
import triton.language as tl

from torchmdx.engines.gpu.triton.edge_walk import (
    direction,
    edges_at,
    filters,
    pair_embedding,
    read_edge,
    row_ends,
    store_edge_gradient,
    sum_of_slices,
)
from torchmdx.engines.gpu.triton.nine import add9, add_to_scalar, along, between, load9, nine, store9, sum_edges


@triton.jit(do_not_specialize=["num_atoms"])
def surroundings(
    NUMBERS, ALL_NUMBERS, TARGETS, SOURCES, A, TABLE, OWN, ROW_PTR, SOURCE, KNOT, PLACE, RARE, num_atoms,
    CHANNELS: tl.constexpr, DEGREE: tl.constexpr, SLICE: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A [N,9,C]. A program takes ROWS adjacent atoms and SLICE channels, DEPTH edges of each row at a time.

    NUMBERS are those of the rows, ALL_NUMBERS those of the atoms that SOURCE counts. RARE: None, or only the rows that
    element_sums.py marks.
    """
    if num_atoms.dtype.is_ptr():
        num_atoms = tl.load(num_atoms)
        if tl.program_id(0) * ROWS >= num_atoms:
            return
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c2 = (tl.program_id(1) * SLICE + tl.arange(0, SLICE))[None, :]
    c = c2[:, None, :]
    valid = row < num_atoms
    if RARE is not None:
        valid = valid & (tl.load(RARE + row, mask=valid, other=0) != 0)
    start, end = row_ends(ROW_PTR, row, valid)
    element = tl.load(NUMBERS + row, mask=valid, other=0)[:, None]
    target = tl.load(TARGETS + element * CHANNELS + c2)
    a = nine(tl.zeros((ROWS, SLICE), tl.float32))
    for step in range(0, tl.max(end - start, 0), DEPTH):
        e, mask = edges_at(start, end, step, DEPTH)
        inside, j, entry, t = read_edge(e, mask, KNOT, SOURCE, PLACE, TABLE, c, CHANNELS, DEGREE)
        x, y, z = direction(e, mask, PLACE)
        element_of_j = tl.load(ALL_NUMBERS + j, mask=mask, other=0)
        pair = pair_embedding(target[:, None, :], element_of_j, inside, SOURCES, c, CHANNELS)
        f = filters(entry, t, inside, CHANNELS, DEGREE)
        f = f[0] * pair, f[1] * pair, f[2] * pair
        a = add9(a, sum_edges(along(f, x[:, :, None], y[:, :, None], z[:, :, None])))
    # The message of an atom to itself has no direction, so it contributes to the scalar part only.
    a = add_to_scalar(a, tl.load(OWN + c2) * (target + tl.load(SOURCES + element * CHANNELS + c2)))
    at = row.to(tl.int64)[:, None] * (9 * CHANNELS) + c2
    store9(A + at, a, valid[:, None], CHANNELS)


@triton.jit(do_not_specialize=["num_atoms", "capacity"])
def surroundings_gradient(
    NUMBERS, ALL_NUMBERS, TARGETS, SOURCES, GA, TABLE, ROW_PTR, SOURCE, KNOT, PLACE, STRETCH, PULL, HALF, RARE,
    num_atoms, capacity,
    CHANNELS: tl.constexpr, DEGREE: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, SLICES: tl.constexpr,
):  # fmt: skip
    """h_e = (Σ_slices PULL + ∂E/∂t) dx/dr d + (1 - d dᵀ)/r ∂E/∂d: the part of an edge's gradient that row i computes.

    ∂E/∂t and ∂E/∂d are those of A_i; PULL [SLICES,E] is what the layers' messages left. RARE: see above.
    """
    if num_atoms.dtype.is_ptr():
        num_atoms = tl.load(num_atoms)
        if tl.program_id(0) * ROWS >= num_atoms:
            return
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c2 = tl.arange(0, CHANNELS)[None, :]
    c = c2[:, None, :]
    valid = row < num_atoms
    if RARE is not None:
        valid = valid & (tl.load(RARE + row, mask=valid, other=0) != 0)
    start, end = row_ends(ROW_PTR, row, valid)
    element = tl.load(NUMBERS + row, mask=valid, other=0)[:, None]
    target = tl.load(TARGETS + element * CHANNELS + c2)[:, None, :]
    g = load9(GA + row.to(tl.int64)[:, None] * (9 * CHANNELS) + c2, valid[:, None], CHANNELS)
    for step in range(0, tl.max(end - start, 0), DEPTH):
        e, mask = edges_at(start, end, step, DEPTH)
        inside, j, entry, t = read_edge(e, mask, KNOT, SOURCE, PLACE, TABLE, c, CHANNELS, DEGREE)
        dx, dy, dz = direction(e, mask, PLACE)
        pull = sum_of_slices(PULL, e, mask, capacity, SLICES)
        element_of_j = tl.load(ALL_NUMBERS + j, mask=mask, other=0)
        pair = pair_embedding(target, element_of_j, inside, SOURCES, c, CHANNELS)
        store_edge_gradient(
            e, mask, inside, entry, t, pair, pull, dx, dy, dz, between(g), STRETCH, HALF, CHANNELS, DEGREE
        )
