"""Derivatives of the multilinear forms in torchmdx.engines.pairs (messages, products), and sums over pairs, on a GPU.

A program handles the row of edges of one atom, or one atom. Sums follow the order of the row, without atomics, so
results are reproducible to the bit. Values of a pair are written by its first edge. Float32 or float64, as the tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torchmdx.engines.pairs.pair_list import PairList

WARPS = 4
MOST_CHANNELS = 128  # of a program


def blocks(channels: int) -> tuple[int, int]:
    """(channels of a program, programs to an atom)."""
    size = min(MOST_CHANNELS, triton.next_power_of_2(channels))
    return size, triton.cdiv(channels, size)


@triton.jit
def load_nine(AT, C, there):
    """Nine components of one atom, for the channels of this program, in the dtype of the tensor."""
    return (
        tl.load(AT, mask=there, other=0.0), tl.load(AT + C, mask=there, other=0.0),
        tl.load(AT + 2 * C, mask=there, other=0.0), tl.load(AT + 3 * C, mask=there, other=0.0),
        tl.load(AT + 4 * C, mask=there, other=0.0), tl.load(AT + 5 * C, mask=there, other=0.0),
        tl.load(AT + 6 * C, mask=there, other=0.0), tl.load(AT + 7 * C, mask=there, other=0.0),
        tl.load(AT + 8 * C, mask=there, other=0.0),
    )  # fmt: skip


@triton.jit
def store_nine(AT, C, there, x0, x1, x2, x3, x4, x5, x6, x7, x8):
    """Writes what `load_nine` reads."""
    tl.store(AT, x0, mask=there)
    tl.store(AT + C, x1, mask=there)
    tl.store(AT + 2 * C, x2, mask=there)
    tl.store(AT + 3 * C, x3, mask=there)
    tl.store(AT + 4 * C, x4, mask=there)
    tl.store(AT + 5 * C, x5, mask=there)
    tl.store(AT + 6 * C, x6, mask=there)
    tl.store(AT + 7 * C, x7, mask=there)
    tl.store(AT + 8 * C, x8, mask=there)


@triton.jit(do_not_specialize=["own"])
def messages_rows_kernel(
    F, X, OUT, ROW_PTR, SOURCE, CODE, own, ROWS: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr
):
    """OUT [N,9,C]: Σ F X over a row, and the message of the atom to itself. Grid: atoms, blocks of channels.

    ROWS: filters F are 0: of pairs, with CODE of the pairs and row `own` for messages of atoms to themselves; 1: of
    edges; 2: of the reverse edges, whose slots are in CODE. In 1 and 2 row own + i is that of atom i.
    """
    i = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = c < C
    x0, x1, x2, x3, x4, x5, x6, x7, x8 = load_nine(X + i * 9 * C + c, C, there)
    last = tl.full((), 1, tl.int64) * own
    if ROWS != 0:
        last += i
    f = F + last * 3 * C + c
    fs = tl.load(f, mask=there, other=0.0)
    fv = tl.load(f + C, mask=there, other=0.0)
    fq = tl.load(f + 2 * C, mask=there, other=0.0)
    o0, o1, o2, o3, o4 = fs * x0, fv * x1, fv * x2, fv * x3, fq * x4
    o5, o6, o7, o8 = fq * x5, fq * x6, fq * x7, fq * x8
    for e in range(tl.load(ROW_PTR + i), tl.load(ROW_PTR + i + 1)):
        j = tl.load(SOURCE + e).to(tl.int64)
        if ROWS == 0:
            p = (tl.load(CODE + e) // 2).to(tl.int64)
        elif ROWS == 1:
            p = tl.full((), 1, tl.int64) * e
        else:
            p = tl.load(CODE + e).to(tl.int64)
        x0, x1, x2, x3, x4, x5, x6, x7, x8 = load_nine(X + j * 9 * C + c, C, there)
        f = F + p * 3 * C + c
        fs = tl.load(f, mask=there, other=0.0)
        fv = tl.load(f + C, mask=there, other=0.0)
        fq = tl.load(f + 2 * C, mask=there, other=0.0)
        o0 += fs * x0
        o1 += fv * x1
        o2 += fv * x2
        o3 += fv * x3
        o4 += fq * x4
        o5 += fq * x5
        o6 += fq * x6
        o7 += fq * x7
        o8 += fq * x8
    store_nine(OUT + i * 9 * C + c, C, there, o0, o1, o2, o3, o4, o5, o6, o7, o8)


@triton.jit
def _messages_pairs(X, G, OUT, ROW_PTR, SOURCE, CODE, C: tl.constexpr, BLOCK: tl.constexpr):
    """OUT [P+1,3,C]: Σ over parts of X_i G_j + X_j G_i, for pairs whose first edge is in row i. Grid as above."""
    i = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = c < C
    x0, x1, x2, x3, x4, x5, x6, x7, x8 = load_nine(X + i * 9 * C + c, C, there)
    g0, g1, g2, g3, g4, g5, g6, g7, g8 = load_nine(G + i * 9 * C + c, C, there)
    for e in range(tl.load(ROW_PTR + i), tl.load(ROW_PTR + i + 1)):
        code = tl.load(CODE + e)
        if code % 2 == 0:
            j = tl.load(SOURCE + e).to(tl.int64)
            y0, y1, y2, y3, y4, y5, y6, y7, y8 = load_nine(X + j * 9 * C + c, C, there)
            h0, h1, h2, h3, h4, h5, h6, h7, h8 = load_nine(G + j * 9 * C + c, C, there)
            at = OUT + (code // 2).to(tl.int64) * 3 * C + c
            tl.store(at, x0 * h0 + y0 * g0, mask=there)
            vector = x1 * h1 + y1 * g1 + x2 * h2 + y2 * g2 + x3 * h3 + y3 * g3
            tl.store(at + C, vector, mask=there)
            symmetric = (
                x4 * h4 + y4 * g4 + x5 * h5 + y5 * g5 + x6 * h6 + y6 * g6 + x7 * h7 + y7 * g7 + x8 * h8 + y8 * g8
            )
            tl.store(at + 2 * C, symmetric, mask=there)


@triton.jit(do_not_specialize=["own"])
def _surroundings_rows(D, F, Z, OUT, ROW_PTR, SOURCE, CODE, own, C: tl.constexpr, BLOCK: tl.constexpr):
    """OUT [N,9,C]: the derivative in G. Grid as above."""
    i = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = c < C
    zi = tl.load(Z + i * 2 * C + c, mask=there, other=0.0)
    zo = tl.load(Z + i * 2 * C + C + c, mask=there, other=0.0)
    last = tl.full((), 1, tl.int64) * own
    o0 = tl.load(D + last * 9) * tl.load(F + last * 3 * C + c, mask=there, other=0.0) * (zi + zo)
    o1, o2, o3, o4, o5, o6, o7, o8 = o0 * 0, o0 * 0, o0 * 0, o0 * 0, o0 * 0, o0 * 0, o0 * 0, o0 * 0
    for e in range(tl.load(ROW_PTR + i), tl.load(ROW_PTR + i + 1)):
        j = tl.load(SOURCE + e).to(tl.int64)
        code = tl.load(CODE + e)
        p = (code // 2).to(tl.int64)
        z = zi + tl.load(Z + j * 2 * C + C + c, mask=there, other=0.0)
        f = F + p * 3 * C + c
        fs = tl.load(f, mask=there, other=0.0) * z
        fv = tl.load(f + C, mask=there, other=0.0) * z
        fv = tl.where(code % 2 == 0, fv, -fv)
        fq = tl.load(f + 2 * C, mask=there, other=0.0) * z
        d = D + p * 9
        o0 += tl.load(d) * fs
        o1 += tl.load(d + 1) * fv
        o2 += tl.load(d + 2) * fv
        o3 += tl.load(d + 3) * fv
        o4 += tl.load(d + 4) * fq
        o5 += tl.load(d + 5) * fq
        o6 += tl.load(d + 6) * fq
        o7 += tl.load(d + 7) * fq
        o8 += tl.load(d + 8) * fq
    store_nine(OUT + i * 9 * C + c, C, there, o0, o1, o2, o3, o4, o5, o6, o7, o8)


@triton.jit
def _surroundings_filters(D, Z, G, OUT, ROW_PTR, SOURCE, CODE, C: tl.constexpr, BLOCK: tl.constexpr):
    """OUT [P+1,3,C]: the derivative in F, for pairs whose first edge is in row i. Grid as above."""
    i = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = c < C
    zi = tl.load(Z + i * 2 * C + c, mask=there, other=0.0)
    zo = tl.load(Z + i * 2 * C + C + c, mask=there, other=0.0)
    g0, g1, g2, g3, g4, g5, g6, g7, g8 = load_nine(G + i * 9 * C + c, C, there)
    for e in range(tl.load(ROW_PTR + i), tl.load(ROW_PTR + i + 1)):
        code = tl.load(CODE + e)
        if code % 2 == 0:
            j = tl.load(SOURCE + e).to(tl.int64)
            p = (code // 2).to(tl.int64)
            here = zi + tl.load(Z + j * 2 * C + C + c, mask=there, other=0.0)
            back = zo + tl.load(Z + j * 2 * C + c, mask=there, other=0.0)
            h0, h1, h2, h3, h4, h5, h6, h7, h8 = load_nine(G + j * 9 * C + c, C, there)
            d = D + p * 9
            at = OUT + p * 3 * C + c
            tl.store(at, tl.load(d) * (here * g0 + back * h0), mask=there)
            vector = tl.load(d + 1) * (here * g1 - back * h1)
            vector += tl.load(d + 2) * (here * g2 - back * h2)
            vector += tl.load(d + 3) * (here * g3 - back * h3)
            tl.store(at + C, vector, mask=there)
            symmetric = tl.load(d + 4) * (here * g4 + back * h4)
            symmetric += tl.load(d + 5) * (here * g5 + back * h5)
            symmetric += tl.load(d + 6) * (here * g6 + back * h6)
            symmetric += tl.load(d + 7) * (here * g7 + back * h7)
            symmetric += tl.load(d + 8) * (here * g8 + back * h8)
            tl.store(at + 2 * C, symmetric, mask=there)


@triton.jit
def _surroundings_directions(F, Z, G, OUT, ROW_PTR, SOURCE, CODE, slots, C: tl.constexpr, BLOCK: tl.constexpr):
    """OUT [blocks,P+1,9]: the derivative in D, one sum for each block of channels. Grid as above."""
    i = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = c < C
    zi = tl.load(Z + i * 2 * C + c, mask=there, other=0.0)
    zo = tl.load(Z + i * 2 * C + C + c, mask=there, other=0.0)
    g0, g1, g2, g3, g4, g5, g6, g7, g8 = load_nine(G + i * 9 * C + c, C, there)
    for e in range(tl.load(ROW_PTR + i), tl.load(ROW_PTR + i + 1)):
        code = tl.load(CODE + e)
        if code % 2 == 0:
            j = tl.load(SOURCE + e).to(tl.int64)
            p = (code // 2).to(tl.int64)
            here = zi + tl.load(Z + j * 2 * C + C + c, mask=there, other=0.0)
            back = zo + tl.load(Z + j * 2 * C + c, mask=there, other=0.0)
            h0, h1, h2, h3, h4, h5, h6, h7, h8 = load_nine(G + j * 9 * C + c, C, there)
            f = F + p * 3 * C + c
            fs = tl.load(f, mask=there, other=0.0)
            fv = tl.load(f + C, mask=there, other=0.0)
            fq = tl.load(f + 2 * C, mask=there, other=0.0)
            at = OUT + (tl.program_id(1).to(tl.int64) * slots + p) * 9
            tl.store(at, tl.sum(fs * (here * g0 + back * h0), 0))
            tl.store(at + 1, tl.sum(fv * (here * g1 - back * h1), 0))
            tl.store(at + 2, tl.sum(fv * (here * g2 - back * h2), 0))
            tl.store(at + 3, tl.sum(fv * (here * g3 - back * h3), 0))
            tl.store(at + 4, tl.sum(fq * (here * g4 + back * h4), 0))
            tl.store(at + 5, tl.sum(fq * (here * g5 + back * h5), 0))
            tl.store(at + 6, tl.sum(fq * (here * g6 + back * h6), 0))
            tl.store(at + 7, tl.sum(fq * (here * g7 + back * h7), 0))
            tl.store(at + 8, tl.sum(fq * (here * g8 + back * h8), 0))


@triton.jit(do_not_specialize=["own"])
def _surroundings_atoms(D, F, G, OUT, ROW_PTR, SOURCE, CODE, own, C: tl.constexpr, BLOCK: tl.constexpr):
    """OUT [N,2,C]: the derivative in Z: as target along the row, as source by the reverse edges."""
    i = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = c < C
    g0, g1, g2, g3, g4, g5, g6, g7, g8 = load_nine(G + i * 9 * C + c, C, there)
    last = tl.full((), 1, tl.int64) * own
    as_target = tl.load(D + last * 9) * tl.load(F + last * 3 * C + c, mask=there, other=0.0) * g0
    as_source = as_target
    for e in range(tl.load(ROW_PTR + i), tl.load(ROW_PTR + i + 1)):
        j = tl.load(SOURCE + e).to(tl.int64)
        code = tl.load(CODE + e)
        p = (code // 2).to(tl.int64)
        h0, h1, h2, h3, h4, h5, h6, h7, h8 = load_nine(G + j * 9 * C + c, C, there)
        f = F + p * 3 * C + c
        fs = tl.load(f, mask=there, other=0.0)
        fv = tl.load(f + C, mask=there, other=0.0)
        fv = tl.where(code % 2 == 0, fv, -fv)
        fq = tl.load(f + 2 * C, mask=there, other=0.0)
        d = D + p * 9
        d0, d1, d2, d3, d4 = tl.load(d), tl.load(d + 1), tl.load(d + 2), tl.load(d + 3), tl.load(d + 4)
        d5, d6, d7, d8 = tl.load(d + 5), tl.load(d + 6), tl.load(d + 7), tl.load(d + 8)
        as_target += fs * d0 * g0 + fv * (d1 * g1 + d2 * g2 + d3 * g3)
        as_target += fq * (d4 * g4 + d5 * g5 + d6 * g6 + d7 * g7 + d8 * g8)
        as_source += fs * d0 * h0 - fv * (d1 * h1 + d2 * h2 + d3 * h3)
        as_source += fq * (d4 * h4 + d5 * h5 + d6 * h6 + d7 * h7 + d8 * h8)
    tl.store(OUT + i * 2 * C + c, as_target, mask=there)
    tl.store(OUT + i * 2 * C + C + c, as_source, mask=there)


@triton.jit
def to_nine(s, a0, a1, a2, xx, xy, xz, yy, yz):
    """The nine entries, row by row, of the matrix with these components."""
    return s + xx, xy - a2, xz + a1, xy + a2, s + yy, yz - a0, xz - a1, yz + a0, s - xx - yy


@triton.jit
def of_dual(s, a0, a1, a2, xx, xy, xz, yy, yz):
    """`torchmdx.engines.pairs.products.dual`."""
    return s / 3, a0 / 2, a1 / 2, a2 / 2, (2 * xx - yy) / 3, xy / 2, xz / 2, (2 * yy - xx) / 3, yz / 2


@triton.jit
def _products(A, B, OUT, SLOT: tl.constexpr, SYMMETRIC: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """OUT [N,9,C] by SLOT: 2: AB; 0: (A is h) dual(A) Bᵀ; 1: (B is h) Aᵀ dual(B); the last two as `undual` components.

    SYMMETRIC: the sum over both orders. Grid: atoms, blocks of channels.
    """
    i = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = c < C
    a0, a1, a2, a3, a4, a5, a6, a7, a8 = load_nine(A + i * 9 * C + c, C, there)
    b0, b1, b2, b3, b4, b5, b6, b7, b8 = load_nine(B + i * 9 * C + c, C, there)
    if SLOT == 0:
        a0, a1, a2, a3, a4, a5, a6, a7, a8 = of_dual(a0, a1, a2, a3, a4, a5, a6, a7, a8)
        b1, b2, b3 = -b1, -b2, -b3
    elif SLOT == 1:
        a1, a2, a3 = -a1, -a2, -a3
        b0, b1, b2, b3, b4, b5, b6, b7, b8 = of_dual(b0, b1, b2, b3, b4, b5, b6, b7, b8)
    m0, m1, m2, m3, m4, m5, m6, m7, m8 = to_nine(a0, a1, a2, a3, a4, a5, a6, a7, a8)
    n0, n1, n2, n3, n4, n5, n6, n7, n8 = to_nine(b0, b1, b2, b3, b4, b5, b6, b7, b8)
    xx = m0 * n0 + m1 * n3 + m2 * n6
    xy = m0 * n1 + m1 * n4 + m2 * n7
    xz = m0 * n2 + m1 * n5 + m2 * n8
    yx = m3 * n0 + m4 * n3 + m5 * n6
    yy = m3 * n1 + m4 * n4 + m5 * n7
    yz = m3 * n2 + m4 * n5 + m5 * n8
    zx = m6 * n0 + m7 * n3 + m8 * n6
    zy = m6 * n1 + m7 * n4 + m8 * n7
    zz = m6 * n2 + m7 * n5 + m8 * n8
    if SYMMETRIC:
        xx += n0 * m0 + n1 * m3 + n2 * m6
        xy += n0 * m1 + n1 * m4 + n2 * m7
        xz += n0 * m2 + n1 * m5 + n2 * m8
        yx += n3 * m0 + n4 * m3 + n5 * m6
        yy += n3 * m1 + n4 * m4 + n5 * m7
        yz += n3 * m2 + n4 * m5 + n5 * m8
        zx += n6 * m0 + n7 * m3 + n8 * m6
        zy += n6 * m1 + n7 * m4 + n8 * m7
        zz += n6 * m2 + n7 * m5 + n8 * m8
    s = (xx + yy + zz) / 3
    o0, o1, o2, o3 = s, (zy - yz) / 2, (xz - zx) / 2, (yx - xy) / 2
    o4, o5, o6, o7, o8 = xx - s, (xy + yx) / 2, (xz + zx) / 2, yy - s, (yz + zy) / 2
    if SLOT != 2:
        o0, o1, o2, o3 = 3 * o0, 2 * o1, 2 * o2, 2 * o3
        o4, o7 = 2 * o4 + o7, 2 * o7 + o4
        o5, o6, o8 = 2 * o5, 2 * o6, 2 * o8
    store_nine(OUT + i * 9 * C + c, C, there, o0, o1, o2, o3, o4, o5, o6, o7, o8)


@triton.jit
def of_metric(x0, x1, x2, x3, x4, x5, x6, x7, x8):
    """`torchmdx.engines.pairs.products.undual`."""
    return 3 * x0, 2 * x1, 2 * x2, 2 * x3, 2 * x4 + x7, 2 * x5, 2 * x6, 2 * x7 + x4, 2 * x8


@triton.jit
def _part_sums(A, B, OUT, METRIC: tl.constexpr, PARTS: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """OUT [N,PARTS,C]: sums of A B over each part, or over all. Grid: atoms, blocks of channels."""
    i = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = c < C
    a0, a1, a2, a3, a4, a5, a6, a7, a8 = load_nine(A + i * 9 * C + c, C, there)
    b0, b1, b2, b3, b4, b5, b6, b7, b8 = load_nine(B + i * 9 * C + c, C, there)
    if METRIC:
        b0, b1, b2, b3, b4, b5, b6, b7, b8 = of_metric(b0, b1, b2, b3, b4, b5, b6, b7, b8)
    at = OUT + i * PARTS * C + c
    vector = a1 * b1 + a2 * b2 + a3 * b3
    symmetric = a4 * b4 + a5 * b5 + a6 * b6 + a7 * b7 + a8 * b8
    if PARTS == 3:
        tl.store(at, a0 * b0, mask=there)
        tl.store(at + C, vector, mask=there)
        tl.store(at + 2 * C, symmetric, mask=there)
    else:
        tl.store(at, a0 * b0 + vector + symmetric, mask=there)


@triton.jit
def _scale_parts(A, H, OUT, METRIC: tl.constexpr, PARTS: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """OUT [N,9,C]: A with each part times H [N,PARTS,C]. Grid: atoms, blocks of channels."""
    i = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = c < C
    a0, a1, a2, a3, a4, a5, a6, a7, a8 = load_nine(A + i * 9 * C + c, C, there)
    if METRIC:
        a0, a1, a2, a3, a4, a5, a6, a7, a8 = of_metric(a0, a1, a2, a3, a4, a5, a6, a7, a8)
    h = H + i * PARTS * C + c
    s = tl.load(h, mask=there, other=0.0)
    v, q = s, s
    if PARTS == 3:
        v = tl.load(h + C, mask=there, other=0.0)
        q = tl.load(h + 2 * C, mask=there, other=0.0)
    o = OUT + i * 9 * C + c
    store_nine(o, C, there, s * a0, v * a1, v * a2, v * a3, q * a4, q * a5, q * a6, q * a7, q * a8)


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
