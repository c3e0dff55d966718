"""Kernels for `edge_values` and messages on a GPU: values of edges, sums over edges, messages with filters of edges.

Sums follow an atom's row of edges, or the reverse edges of the row, without atomics, so results are reproducible to
the bit. Values of edges are by slot, zero at padded edges; rows for the messages of atoms to themselves may follow.
Float32 or float64, as the tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from torchmdx.engines.gpu.triton.nine import dot_parts, load9, store3
from torchmdx.engines.pairs.kernels.multilinear import WARPS, blocks, here, messages_rows_kernel

if TYPE_CHECKING:
    from torchmdx.engines.pairs.pair_list import PairList

# Elements that a program reads at a time, and programs that write zeros to padding.
TILE, FILLERS = 512, 128


@triton.jit
def _to_edges(
    A, T, S, OUT, CODE, TARGET, SOURCE, NUM_EDGES, capacity, rows, own, K: tl.constexpr,
    HAS_A: tl.constexpr, HAS_T: tl.constexpr, HAS_S: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """OUT [rows,K]: A [pair] + T [target] + S [source], those that are given. Grid: blocks of rows and of columns."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    filled = row < tl.load(NUM_EDGES)
    atom = (row >= capacity) & (row < rows)
    there = (filled | atom)[:, None] & (k < K)[None, :]
    total = tl.zeros((ROWS, BLOCK), OUT.dtype.element_ty)
    if HAS_A:
        pair = tl.where(filled, tl.load(CODE + row, mask=filled, other=0) // 2, own).to(tl.int64)
        total += tl.load(A + pair[:, None] * K + k[None, :], mask=there, other=0.0)
    if HAS_T:
        target = tl.where(filled, tl.load(TARGET + row, mask=filled, other=0), row - capacity).to(tl.int64)
        total += tl.load(T + target[:, None] * K + k[None, :], mask=there, other=0.0)
    if HAS_S:
        source = tl.where(filled, tl.load(SOURCE + row, mask=filled, other=0), row - capacity).to(tl.int64)
        total += tl.load(S + source[:, None] * K + k[None, :], mask=there, other=0.0)
    tl.store(OUT + row.to(tl.int64)[:, None] * K + k[None, :], total, mask=(row < rows)[:, None] & (k < K)[None, :])


@triton.jit
def _to_pairs(G, OUT, FIRST, REVERSE, NUM_PAIRS, slots, K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """OUT [P,K]: G at both edges of a pair. Grid: blocks of pairs and of columns."""
    pair = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    filled = pair < tl.load(NUM_PAIRS)
    edge = tl.load(FIRST + pair, mask=filled, other=0)
    back = tl.load(REVERSE + edge, mask=filled, other=0).to(tl.int64)
    edge = edge.to(tl.int64)
    there = filled[:, None] & (k < K)[None, :]
    total = tl.load(G + edge[:, None] * K + k[None, :], mask=there, other=0.0)
    total += tl.load(G + back[:, None] * K + k[None, :], mask=there, other=0.0)
    tl.store(OUT + pair.to(tl.int64)[:, None] * K + k[None, :], total, mask=(pair < slots)[:, None] & (k < K)[None, :])


@triton.jit
def _to_atoms(
    G, T, S, ROW_PTR, REVERSE, capacity, K: tl.constexpr, OWN: tl.constexpr,
    HAS_T: tl.constexpr, HAS_S: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """T, S [N,K]: sums of G over the edges to an atom, and from it. Grid: atoms, blocks of columns."""
    i = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    along = tl.zeros((ROWS, BLOCK), G.dtype.element_ty)
    back = tl.zeros((ROWS, BLOCK), G.dtype.element_ty)
    end = tl.load(ROW_PTR + i + 1)
    for start in range(tl.load(ROW_PTR + i), end, ROWS):
        edge = start + tl.arange(0, ROWS)
        there = (edge < end)[:, None] & (k < K)[None, :]
        if HAS_T:
            along += tl.load(G + edge.to(tl.int64)[:, None] * K + k[None, :], mask=there, other=0.0)
        if HAS_S:
            other = tl.load(REVERSE + edge, mask=edge < end, other=0).to(tl.int64)
            back += tl.load(G + other[:, None] * K + k[None, :], mask=there, other=0.0)
    mine = tl.zeros((BLOCK,), G.dtype.element_ty)
    if OWN:
        mine = tl.load(G + (capacity + i) * K + k, mask=k < K, other=0.0)
    if HAS_T:
        tl.store(T + i * K + k, tl.sum(along, 0) + mine, mask=k < K)
    if HAS_S:
        tl.store(S + i * K + k, tl.sum(back, 0) + mine, mask=k < K)


@triton.jit
def _messages_edges(
    X, G, OUT, ROW_PTR, SOURCE, NUM_EDGES, capacity, num_atoms, C: tl.constexpr, FILL: tl.constexpr, BLOCK: tl.constexpr
):
    """OUT [E+N,3,C]: Σ over parts of X_source G_target, of each edge and then of each atom with itself.

    Grid: atoms and then FILL programs that write zeros to the list's padding; blocks of channels.
    """
    i, c, there = here(C, BLOCK)
    if i >= num_atoms:
        zero = tl.zeros((BLOCK,), X.dtype.element_ty)
        for e in range(tl.load(NUM_EDGES) + tl.program_id(0) - num_atoms, capacity, FILL):
            store3(OUT + (tl.full((), 3, tl.int64) * e) * C + c, (zero, zero, zero), there, C)
    else:
        g = load9(G + i * 9 * C + c, there, C)
        x = load9(X + i * 9 * C + c, there, C)
        store3(OUT + (capacity + i) * 3 * C + c, dot_parts(x, g), there, C)
        for e in range(tl.load(ROW_PTR + i), tl.load(ROW_PTR + i + 1)):
            j = tl.load(SOURCE + e).to(tl.int64)
            x = load9(X + j * 9 * C + c, there, C)
            store3(OUT + (tl.full((), 3, tl.int64) * e) * C + c, dot_parts(x, g), there, C)


def _tile(width: int) -> tuple[int, int]:
    """(rows, columns) of a program's tile."""
    columns = min(128, triton.next_power_of_2(width))
    return TILE // columns, columns


def to_edges(pairs: PairList, a, t, s, own: bool) -> torch.Tensor:
    e, some = pairs.edges, next(x for x in (a, t, s) if x is not None)
    width, rows = some.shape[1], e.capacity + (e.num_atoms if own else 0)
    out, (tall, size) = some.new_empty(rows, width), _tile(width)
    grid = (triton.cdiv(rows, tall), triton.cdiv(width, size))
    _to_edges[grid](
        *(some if x is None else x for x in (a, t, s)), out, pairs.code, e.target, e.source, e.num_edges, e.capacity,
        rows, pairs.num_slots, K=width, HAS_A=a is not None, HAS_T=t is not None, HAS_S=s is not None, ROWS=tall,
        BLOCK=size, num_warps=WARPS,
    )  # fmt: skip
    return out


def to_pairs(pairs: PairList, g: torch.Tensor, own: bool) -> torch.Tensor:
    slots, width, (tall, size) = pairs.num_slots, g.shape[1], _tile(g.shape[1])
    out = g.new_empty(slots + own, width)
    _to_pairs[(triton.cdiv(slots, tall), triton.cdiv(width, size))](
        g, out, pairs.first, pairs.reverse, pairs.num_pairs, slots, K=width, ROWS=tall, BLOCK=size, num_warps=WARPS
    )
    if own:
        torch.sum(g[pairs.edges.capacity :], 0, out=out[-1])
    return out


def to_atoms(pairs: PairList, g: torch.Tensor, own: bool, as_target: bool, as_source: bool) -> list[torch.Tensor]:
    e, width, (tall, size) = pairs.edges, g.shape[1], _tile(g.shape[1])
    out = [g.new_empty(e.num_atoms, width) for wanted in (as_target, as_source) if wanted]
    _to_atoms[(e.num_atoms, triton.cdiv(width, size))](
        g, out[0], out[-1], e.row_ptr, pairs.reverse, e.capacity, K=width, OWN=own, HAS_T=as_target, HAS_S=as_source,
        ROWS=tall, BLOCK=size, num_warps=WARPS,
    )  # fmt: skip
    return out


def messages_rows(pairs: PairList, f: torch.Tensor, x: torch.Tensor, back: bool) -> torch.Tensor:
    out, (size, parts), e = torch.empty_like(x), blocks(x.shape[2]), pairs.edges
    messages_rows_kernel[(len(x), parts)](
        f, x, out, e.row_ptr, e.source, pairs.reverse, e.capacity, ROWS=2 if back else 1, C=x.shape[2], BLOCK=size,
        num_warps=WARPS,
    )  # fmt: skip
    return out


def messages_edges(pairs: PairList, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    e, channels, (size, parts) = pairs.edges, x.shape[2], blocks(x.shape[2])
    out = x.new_empty(e.capacity + e.num_atoms, 3, channels)
    _messages_edges[(e.num_atoms + FILLERS, parts)](
        x, g, out, e.row_ptr, e.source, e.num_edges, e.capacity, e.num_atoms, C=channels, FILL=FILLERS, BLOCK=size,
        num_warps=WARPS,
    )  # fmt: skip
    return out
