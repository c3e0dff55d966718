"""Derivatives of the multilinear forms in torchmdx.engines.pairs (messages, products), and sums over pairs, on a GPU.

A program handles the row of edges of one atom, or one atom. Sums follow the order of the row, without atomics, so
results are reproducible to the bit. Values of a pair are written by its first edge. Float32 or float64, as the tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from torchmdx.engines.gpu.triton import nine
from torchmdx.engines.gpu.triton.nine import add9, dot_parts, load3, load9, matmul, store3, store9, to_matrix

if TYPE_CHECKING:
    from torchmdx.engines.pairs.pair_list import PairList

WARPS = 4
MOST_CHANNELS = 128  # of a program


def blocks(channels: int) -> tuple[int, int]:
    """(channels of a program, programs to an atom)."""
    size = min(MOST_CHANNELS, triton.next_power_of_2(channels))
    return size, triton.cdiv(channels, size)


@triton.jit
def here(C: tl.constexpr, BLOCK: tl.constexpr):
    """(atom, channels, whether these exist) of a program: grids are of atoms and blocks of channels."""
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    return tl.program_id(0).to(tl.int64), c, c < C


@triton.jit(do_not_specialize=["own"])
def messages_rows_kernel(
    F, X, OUT, ROW_PTR, SOURCE, CODE, own, ROWS: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr
):
    """OUT [N,9,C]: Σ F X over a row, and the message of the atom to itself. Grid: atoms, blocks of channels.

    ROWS: filters F are 0: of pairs, with CODE of the pairs and row `own` for messages of atoms to themselves; 1: of
    edges; 2: of the reverse edges, whose slots are in CODE. In 1 and 2 row own + i is that of atom i.
    """
    i, c, there = here(C, BLOCK)
    x = load9(X + i * 9 * C + c, there, C)
    last = tl.full((), 1, tl.int64) * own
    if ROWS != 0:
        last += i
    fs, fv, fq = load3(F + last * 3 * C + c, there, C)
    total = nine.scale_parts(x, fs, fv, fq)
    for e in range(tl.load(ROW_PTR + i), tl.load(ROW_PTR + i + 1)):
        j = tl.load(SOURCE + e).to(tl.int64)
        if ROWS == 0:
            p = (tl.load(CODE + e) // 2).to(tl.int64)
        elif ROWS == 1:
            p = tl.full((), 1, tl.int64) * e
        else:
            p = tl.load(CODE + e).to(tl.int64)
        x = load9(X + j * 9 * C + c, there, C)
        fs, fv, fq = load3(F + p * 3 * C + c, there, C)
        total = add9(total, nine.scale_parts(x, fs, fv, fq))
    store9(OUT + i * 9 * C + c, total, there, C)


@triton.jit
def _messages_pairs(X, G, OUT, ROW_PTR, SOURCE, CODE, C: tl.constexpr, BLOCK: tl.constexpr):
    """OUT [P+1,3,C]: Σ over parts of X_i G_j + X_j G_i, for pairs whose first edge is in row i. Grid as above."""
    i, c, there = here(C, BLOCK)
    x = load9(X + i * 9 * C + c, there, C)
    g = load9(G + i * 9 * C + c, there, C)
    for e in range(tl.load(ROW_PTR + i), tl.load(ROW_PTR + i + 1)):
        code = tl.load(CODE + e)
        if code % 2 == 0:
            j = tl.load(SOURCE + e).to(tl.int64)
            y = load9(X + j * 9 * C + c, there, C)
            h = load9(G + j * 9 * C + c, there, C)
            at = OUT + (code // 2).to(tl.int64) * 3 * C + c
            tl.store(at, x[0] * h[0] + y[0] * g[0], mask=there)
            vector = x[1] * h[1] + y[1] * g[1] + x[2] * h[2] + y[2] * g[2] + x[3] * h[3] + y[3] * g[3]
            tl.store(at + C, vector, mask=there)
            symmetric = x[4] * h[4] + y[4] * g[4] + x[5] * h[5] + y[5] * g[5] + x[6] * h[6] + y[6] * g[6]
            symmetric = symmetric + x[7] * h[7] + y[7] * g[7] + x[8] * h[8] + y[8] * g[8]
            tl.store(at + 2 * C, symmetric, mask=there)


@triton.jit
def _target_and_source(Z, i, c, there, C: tl.constexpr):
    """Both terms of atom i in Z [N,2,C]: as a target and as a source."""
    return tl.load(Z + i * 2 * C + c, mask=there, other=0.0), tl.load(Z + i * 2 * C + C + c, mask=there, other=0.0)


@triton.jit(do_not_specialize=["own"])
def _surroundings_rows(D, F, Z, OUT, ROW_PTR, SOURCE, CODE, own, C: tl.constexpr, BLOCK: tl.constexpr):
    """OUT [N,9,C]: the derivative in G. Grid as above."""
    i, c, there = here(C, BLOCK)
    zi, zo = _target_and_source(Z, i, c, there, C)
    last = tl.full((), 1, tl.int64) * own
    own_term = tl.load(D + last * 9) * tl.load(F + last * 3 * C + c, mask=there, other=0.0) * (zi + zo)
    nothing = own_term * 0
    total = (own_term, nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing)
    for e in range(tl.load(ROW_PTR + i), tl.load(ROW_PTR + i + 1)):
        j = tl.load(SOURCE + e).to(tl.int64)
        code = tl.load(CODE + e)
        p = (code // 2).to(tl.int64)
        z = zi + tl.load(Z + j * 2 * C + C + c, mask=there, other=0.0)
        fs, fv, fq = load3(F + p * 3 * C + c, there, C)
        fs, fv, fq = fs * z, fv * z, fq * z
        fv = tl.where(code % 2 == 0, fv, -fv)
        total = add9(total, nine.scale_parts(load9(D + p * 9, None, 1), fs, fv, fq))
    store9(OUT + i * 9 * C + c, total, there, C)


@triton.jit
def _both_sides(Z, G, i, j, zi, zo, c, there, C: tl.constexpr):
    """What the rows of both ends of an edge from j to i see: z of the two directions, and G of j."""
    forth = zi + tl.load(Z + j * 2 * C + C + c, mask=there, other=0.0)
    back = zo + tl.load(Z + j * 2 * C + c, mask=there, other=0.0)
    return forth, back, load9(G + j * 9 * C + c, there, C)


@triton.jit
def _surroundings_filters(D, Z, G, OUT, ROW_PTR, SOURCE, CODE, C: tl.constexpr, BLOCK: tl.constexpr):
    """OUT [P+1,3,C]: the derivative in F, for pairs whose first edge is in row i. Grid as above."""
    i, c, there = here(C, BLOCK)
    zi, zo = _target_and_source(Z, i, c, there, C)
    g = load9(G + i * 9 * C + c, there, C)
    for e in range(tl.load(ROW_PTR + i), tl.load(ROW_PTR + i + 1)):
        code = tl.load(CODE + e)
        if code % 2 == 0:
            j = tl.load(SOURCE + e).to(tl.int64)
            p = (code // 2).to(tl.int64)
            forth, back, h = _both_sides(Z, G, i, j, zi, zo, c, there, C)
            s = _of_pair(forth, back, g, h)
            d, at = D + p * 9, OUT + p * 3 * C + c
            tl.store(at, tl.load(d) * s[0], mask=there)
            tl.store(at + C, tl.load(d + 1) * s[1] + tl.load(d + 2) * s[2] + tl.load(d + 3) * s[3], mask=there)
            symmetric = tl.load(d + 4) * s[4] + tl.load(d + 5) * s[5] + tl.load(d + 6) * s[6]
            tl.store(at + 2 * C, symmetric + tl.load(d + 7) * s[7] + tl.load(d + 8) * s[8], mask=there)


@triton.jit
def _of_pair(forth, back, g, h):
    """forth G_i + back G_j of both edges of a pair; the vector part changes its sign for the reverse edge."""
    return (
        forth * g[0] + back * h[0], forth * g[1] - back * h[1], forth * g[2] - back * h[2],
        forth * g[3] - back * h[3], forth * g[4] + back * h[4], forth * g[5] + back * h[5],
        forth * g[6] + back * h[6], forth * g[7] + back * h[7], forth * g[8] + back * h[8],
    )  # fmt: skip


@triton.jit
def _surroundings_directions(F, Z, G, OUT, ROW_PTR, SOURCE, CODE, slots, C: tl.constexpr, BLOCK: tl.constexpr):
    """OUT [blocks,P+1,9]: the derivative in D, one sum for each block of channels. Grid as above."""
    i, c, there = here(C, BLOCK)
    zi, zo = _target_and_source(Z, i, c, there, C)
    g = load9(G + i * 9 * C + c, there, C)
    for e in range(tl.load(ROW_PTR + i), tl.load(ROW_PTR + i + 1)):
        code = tl.load(CODE + e)
        if code % 2 == 0:
            j = tl.load(SOURCE + e).to(tl.int64)
            p = (code // 2).to(tl.int64)
            forth, back, h = _both_sides(Z, G, i, j, zi, zo, c, there, C)
            fs, fv, fq = load3(F + p * 3 * C + c, there, C)
            s = nine.scale_parts(_of_pair(forth, back, g, h), fs, fv, fq)
            at = OUT + (tl.program_id(1).to(tl.int64) * slots + p) * 9
            for k in tl.static_range(9):
                tl.store(at + k, tl.sum(s[k], 0))


@triton.jit(do_not_specialize=["own"])
def _surroundings_atoms(D, F, G, OUT, ROW_PTR, SOURCE, CODE, own, C: tl.constexpr, BLOCK: tl.constexpr):
    """OUT [N,2,C]: the derivative in Z: as target along the row, as source by the reverse edges."""
    i, c, there = here(C, BLOCK)
    g = load9(G + i * 9 * C + c, there, C)
    last = tl.full((), 1, tl.int64) * own
    as_target = tl.load(D + last * 9) * tl.load(F + last * 3 * C + c, mask=there, other=0.0) * g[0]
    as_source = as_target
    for e in range(tl.load(ROW_PTR + i), tl.load(ROW_PTR + i + 1)):
        j = tl.load(SOURCE + e).to(tl.int64)
        code = tl.load(CODE + e)
        p = (code // 2).to(tl.int64)
        h = load9(G + j * 9 * C + c, there, C)
        fs, fv, fq = load3(F + p * 3 * C + c, there, C)
        fv = tl.where(code % 2 == 0, fv, -fv)
        d = load9(D + p * 9, None, 1)
        as_target += fs * d[0] * g[0] + fv * (d[1] * g[1] + d[2] * g[2] + d[3] * g[3])
        as_target += fq * (d[4] * g[4] + d[5] * g[5] + d[6] * g[6] + d[7] * g[7] + d[8] * g[8])
        as_source += fs * d[0] * h[0] - fv * (d[1] * h[1] + d[2] * h[2] + d[3] * h[3])
        as_source += fq * (d[4] * h[4] + d[5] * h[5] + d[6] * h[6] + d[7] * h[7] + d[8] * h[8])
    tl.store(OUT + i * 2 * C + c, as_target, mask=there)
    tl.store(OUT + i * 2 * C + C + c, as_source, mask=there)


@triton.jit
def of_dual(x):
    """`torchmdx.engines.pairs.products.dual`."""
    xx, yy = (2 * x[4] - x[7]) / 3, (2 * x[7] - x[4]) / 3
    return x[0] / 3, x[1] / 2, x[2] / 2, x[3] / 2, xx, x[5] / 2, x[6] / 2, yy, x[8] / 2


@triton.jit
def of_metric(x):
    """`torchmdx.engines.pairs.products.undual`."""
    xx, yy = 2 * x[4] + x[7], 2 * x[7] + x[4]
    return 3 * x[0], 2 * x[1], 2 * x[2], 2 * x[3], xx, 2 * x[5], 2 * x[6], yy, 2 * x[8]


@triton.jit
def components_of(m):
    """Components of a matrix of nine entries."""
    s = (m[0] + m[4] + m[8]) / 3
    a = (m[7] - m[5]) / 2, (m[2] - m[6]) / 2, (m[3] - m[1]) / 2
    return s, a[0], a[1], a[2], m[0] - s, (m[1] + m[3]) / 2, (m[2] + m[6]) / 2, m[4] - s, (m[5] + m[7]) / 2


@triton.jit
def _products(A, B, OUT, SLOT: tl.constexpr, SYMMETRIC: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """OUT [N,9,C] by SLOT: 2: AB; 0: (A is h) dual(A) Bᵀ; 1: (B is h) Aᵀ dual(B); the last two as `undual` components.

    SYMMETRIC: the sum over both orders. Grid: atoms, blocks of channels.
    """
    i, c, there = here(C, BLOCK)
    a = load9(A + i * 9 * C + c, there, C)
    b = load9(B + i * 9 * C + c, there, C)
    if SLOT == 0:
        a, b = of_dual(a), turned(b)
    elif SLOT == 1:
        a, b = turned(a), of_dual(b)
    m, n = to_matrix(a), to_matrix(b)
    p = matmul(m, n)
    if SYMMETRIC:
        p = add9(p, matmul(n, m))
    p = components_of(p)
    if SLOT != 2:
        p = of_metric(p)
    store9(OUT + i * 9 * C + c, p, there, C)


@triton.jit
def turned(x):
    """Components of the transposed matrix."""
    return x[0], -x[1], -x[2], -x[3], x[4], x[5], x[6], x[7], x[8]


@triton.jit
def _part_sums(A, B, OUT, METRIC: tl.constexpr, PARTS: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """OUT [N,PARTS,C]: sums of A B over each part, or over all. Grid: atoms, blocks of channels."""
    i, c, there = here(C, BLOCK)
    a = load9(A + i * 9 * C + c, there, C)
    b = load9(B + i * 9 * C + c, there, C)
    if METRIC:
        b = of_metric(b)
    at = OUT + i * PARTS * C + c
    sums = dot_parts(a, b)
    if PARTS == 3:
        store3(at, sums, there, C)
    else:
        tl.store(at, sums[0] + sums[1] + sums[2], mask=there)


@triton.jit
def _scale_parts(A, H, OUT, METRIC: tl.constexpr, PARTS: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """OUT [N,9,C]: A with each part times H [N,PARTS,C]. Grid: atoms, blocks of channels."""
    i, c, there = here(C, BLOCK)
    a = load9(A + i * 9 * C + c, there, C)
    if METRIC:
        a = of_metric(a)
    h = H + i * PARTS * C + c
    if PARTS == 3:
        s, v, q = load3(h, there, C)
    else:
        s = tl.load(h, mask=there, other=0.0)
        v, q = s, s
    store9(OUT + i * 9 * C + c, nine.scale_parts(a, s, v, q), there, C)


@triton.jit
def _row_products(V, H, OUT, rows, K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """OUT [P]: Σ_k V H, ROWS rows a program."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((ROWS, BLOCK), V.dtype.element_ty)
    for start in tl.static_range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        at = row.to(tl.int64)[:, None] * K + k[None, :]
        there = (row < rows)[:, None] & (k < K)[None, :]
        total += tl.load(V + at, mask=there, other=0.0) * tl.load(H + at, mask=there, other=0.0)
    tl.store(OUT + row, tl.sum(total, 1), mask=row < rows)


@triton.jit
def _row_scale(V, E, OUT, rows, K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """OUT [P,K] = V E, one factor of E [P] per row. Grid: blocks of ROWS rows, blocks of columns."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = row.to(tl.int64)[:, None] * K + k[None, :]
    there = (row < rows)[:, None] & (k < K)[None, :]
    e = tl.load(E + row, mask=row < rows, other=0.0)
    tl.store(OUT + at, tl.load(V + at, mask=there, other=0.0) * e[:, None], mask=there)


@triton.jit
def _sum_pairs(V, OUT, ROW_PTR, CODE, at_target, at_source, K: tl.constexpr, BLOCK: tl.constexpr):
    """OUT [N,K]: Σ over a row of V [P,K] times at_target for first edges of pairs, else times at_source."""
    i = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), V.dtype.element_ty)
    for e in range(tl.load(ROW_PTR + i), tl.load(ROW_PTR + i + 1)):
        code = tl.load(CODE + e)
        factor = tl.where(code % 2 == 0, at_target, at_source)
        total += factor.to(V.dtype.element_ty) * tl.load(V + (code // 2).to(tl.int64) * K + k, mask=k < K, other=0.0)
    tl.store(OUT + i * K + k, total, mask=k < K)


@triton.jit
def _sum_rows(V, OUT, PTR, K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """OUT [S,K]: sums of V [N,K] from PTR[s] to PTR[s+1]. Grid: sums, blocks of columns."""
    s = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((ROWS, BLOCK), V.dtype.element_ty)
    end = tl.load(PTR + s + 1)
    for first in range(tl.load(PTR + s), end, ROWS):
        row = first + tl.arange(0, ROWS)
        at = V + row.to(tl.int64)[:, None] * K + k[None, :]
        total += tl.load(at, mask=(row < end)[:, None] & (k < K)[None, :], other=0.0)
    tl.store(OUT + s * K + k, tl.sum(total, 0), mask=k < K)


@triton.jit
def _clear_unused(OUT, NUM_PAIRS, rows, K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """OUT [rows,K]: zero from row NUM_PAIRS on; other rows are kept. Grid: blocks of rows, most of them in use."""
    used = tl.load(NUM_PAIRS)
    first = tl.program_id(0) * ROWS
    if first + ROWS > used:
        row = first + tl.arange(0, ROWS)
        unused = (row >= used) & (row < rows)
        for start in tl.static_range(0, K, BLOCK):
            k = start + tl.arange(0, BLOCK)
            at = row.to(tl.int64)[:, None] * K + k[None, :]
            nothing = tl.zeros((ROWS, BLOCK), OUT.dtype.element_ty)
            tl.store(OUT + at, nothing, mask=unused[:, None] & (k < K)[None, :])


def pair_rows(pairs: PairList, like: torch.Tensor, channels: int) -> torch.Tensor:
    """[P+1,3,C], zero in unused slots and in the last row; kernels write every other row once."""
    rows, width = pairs.num_slots + 1, 3 * channels
    out = like.new_empty(rows, 3, channels)
    size = min(128, triton.next_power_of_2(width))
    _clear_unused[(triton.cdiv(rows, 32),)](out, pairs.num_pairs, rows, K=width, ROWS=32, BLOCK=size, num_warps=WARPS)
    return out


def messages_rows(pairs: PairList, f: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    out, (size, parts) = torch.empty_like(x), blocks(x.shape[2])
    e = pairs.edges
    messages_rows_kernel[(len(x), parts)](
        f, x, out, e.row_ptr, e.source, pairs.code, pairs.num_slots, ROWS=0, C=x.shape[2], BLOCK=size, num_warps=WARPS
    )
    return out


def messages_pairs(pairs: PairList, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    channels = x.shape[2]
    out, (size, parts) = pair_rows(pairs, x, channels), blocks(channels)
    e = pairs.edges
    _messages_pairs[(len(x), parts)](
        x, g, out, e.row_ptr, e.source, pairs.code, C=channels, BLOCK=size, num_warps=WARPS
    )
    torch.sum(part_sums(x, g), 0, out=out[-1])
    return out


def surroundings(pairs: PairList, slot: int, d, f, z, g) -> torch.Tensor:
    e, (some, *_) = pairs.edges, [x for x in (f, z, g) if x is not None]
    channels, slots = some.shape[2], pairs.num_slots
    size, parts = blocks(channels)
    grid, options = (e.num_atoms, parts), dict(C=channels, BLOCK=size, num_warps=WARPS)
    rows = (e.row_ptr, e.source, pairs.code)
    if slot == 0:
        shares = some.new_zeros(parts, slots + 1, 9)
        # One warp, because each pair has nine sums over channels.
        _surroundings_directions[grid](f, z, g, shares, *rows, slots + 1, **(options | dict(num_warps=1)))
        return shares[0] if parts == 1 else shares.sum(0)
    if slot == 1:
        out = pair_rows(pairs, some, channels)
        _surroundings_filters[grid](d, z, g, out, *rows, **options)
        out[-1, 0] = d[-1, 0] * (z.sum(1) * g[:, 0]).sum(0)
        return out
    if slot == 2:
        out = some.new_empty(e.num_atoms, 2, channels)
        _surroundings_atoms[grid](d, f, g, out, *rows, slots, **options)
        return out
    out = some.new_empty(e.num_atoms, 9, channels)
    _surroundings_rows[grid](d, f, z, out, *rows, slots, **options)
    return out


def products(slot: int, symmetric: bool, a, b, h) -> torch.Tensor:
    one, other = ((h, b), (a, h), (a, b))[slot]
    out, (size, parts) = torch.empty_like(one), blocks(one.shape[2])
    _products[(len(one), parts)](
        one, other, out, SLOT=slot, SYMMETRIC=symmetric, C=one.shape[2], BLOCK=size, num_warps=WARPS
    )
    return out


def part_sums(a: torch.Tensor, b: torch.Tensor, parts: int = 3, metric: bool = False) -> torch.Tensor:
    out, (size, programs) = a.new_empty(len(a), parts, a.shape[2]), blocks(a.shape[2])
    _part_sums[(len(a), programs)](a, b, out, METRIC=metric, PARTS=parts, C=a.shape[2], BLOCK=size, num_warps=WARPS)
    return out


def scale_parts(a: torch.Tensor, h: torch.Tensor, metric: bool = False) -> torch.Tensor:
    out, (size, programs) = torch.empty_like(a), blocks(a.shape[2])
    _scale_parts[(len(a), programs)](
        a, h, out, METRIC=metric, PARTS=h.shape[1], C=a.shape[2], BLOCK=size, num_warps=WARPS
    )
    return out


def row_products(v: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    out, width = v.new_empty(len(v), 1), v.shape[1]
    size = min(128, triton.next_power_of_2(width))
    _row_products[(triton.cdiv(len(v), 8),)](v, h, out, len(v), K=width, ROWS=8, BLOCK=size, num_warps=WARPS)
    return out


def row_scale(v: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
    out, width = torch.empty_like(v), v.shape[1]
    size = min(128, triton.next_power_of_2(width))
    grid = (triton.cdiv(len(v), 8), triton.cdiv(width, size))
    _row_scale[grid](v, e, out, len(v), K=width, ROWS=8, BLOCK=size, num_warps=WARPS)
    return out


def sum_pairs(values, pairs: PairList, at_target: float, at_source: float, out) -> torch.Tensor:
    width = values.shape[1]
    _sum_pairs[(len(out),)](
        values, out, pairs.edges.row_ptr, pairs.code, at_target, at_source,
        K=width, BLOCK=triton.next_power_of_2(width), num_warps=1,
    )  # fmt: skip
    return out


def sum_rows(values, ends, out) -> torch.Tensor:
    width = values[0].numel() if len(values) else 1
    size = min(128, triton.next_power_of_2(width))
    _sum_rows[(len(out), triton.cdiv(width, size))](
        values, out, ends, K=width, ROWS=max(1, 256 // size), BLOCK=size, num_warps=4
    )
    return out
