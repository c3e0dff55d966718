"""Linear maps of channels and their derivatives on tensor cores, exact to float32: one matrix, or one for each part.

Rows [N,M,K] are vectors (M = 1) or the nine components of atoms, multiplied with W [parts,N,K]. Each product is three
of TF32, added outside the tensor core at every step, which restores what it cuts off, see
`torchmdx.engines.gpu.triton.tf32_product`; here both operands change at every step of a training and are divided in
registers. Sums over rows are divided among programs, which leave shares that are added in a fixed order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from torchmdx.engines.gpu.triton.activations import sigmoid
from torchmdx.engines.gpu.triton.tf32_product import nearest, restored

# From these rows on (times components), programs are as large as registers allow, and transposed weights are copied.
MANY_ROWS, SOME_ROWS = 16384, 4096
# Programs that fill a GPU, and the fewest rows of a share of a sum over rows.
PROGRAMS, LEAST_SHARE = 264, 64
NINE = 9


class LinearSizes(NamedTuple):
    """Rows and columns of the block of a program, numbers of a step of the inner sum, warps, and steps on the way."""

    rows: int
    columns: int
    step: int
    warps: int
    stages: int

    @classmethod
    def choose(cls, rows: int) -> LinearSizes:
        if rows >= MANY_ROWS:
            return cls(128, 64, 32, 4, 3)
        return cls(64, 64, 32, 4, 3) if rows >= SOME_ROWS else cls(32, 32, 32, 4, 3)


@triton.jit
def exact_product(acc, a, b):
    """acc + a b.

    a is rounded to its larger part, not cut off, so that products of the rests, which are left out, have either sign.
    Rounding b too would take a quarter of the programs that run at the same time, for registers.
    """
    a_big = nearest(a)
    b_big = (b.to(tl.uint32, bitcast=True) & 0xFFFFE000).to(tl.float32, bitcast=True)
    total = tl.dot(a - a_big, b_big, input_precision="tf32")
    total = tl.dot(a_big, b - b_big, total, input_precision="tf32")
    return acc + restored(tl.dot(a_big, b_big, total, input_precision="tf32"), a.shape[1] // 8)


@triton.jit
def part_of(component):
    """Number of the part of a component."""
    return (component > 0).to(tl.int32) + (component > 3).to(tl.int32)


@triton.jit(do_not_specialize=["rows"])
def _multiply(
    X, W, BIAS, Y, ACTIVATED, rows, inner, outer, M: tl.constexpr, BACK: tl.constexpr, ADD: tl.constexpr,
    ACTIVATE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Y [rows,M,outer] = X W for W [parts,outer,inner], with BACK [parts,inner,outer]; ADD: + BIAS [outer].

    ACTIVATE: also ACTIVATED, SiLU of Y. Grid: blocks of rows, blocks of columns, components.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    component = tl.program_id(2)
    w = W + part_of(component) * (inner * outer)
    base = row.to(tl.int64) * M + component
    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, inner, STEP):
        k = first + tl.arange(0, STEP)
        there = (row < rows)[:, None] & (k < inner)[None, :]
        x = tl.load(X + base[:, None] * inner + k[None, :], mask=there, other=0.0)
        there = (n < outer)[:, None] & (k < inner)[None, :]
        if BACK:
            b = tl.load(w + k[:, None] * outer + n[None, :], mask=there.T, other=0.0)
        else:
            b = tl.load(w + n[:, None] * inner + k[None, :], mask=there, other=0.0).T
        acc = exact_product(acc, x, b)
    if ADD:
        acc += tl.load(BIAS + n, mask=n < outer, other=0.0)[None, :]
    there = (row < rows)[:, None] & (n < outer)[None, :]
    tl.store(Y + base[:, None] * outer + n[None, :], acc, mask=there)
    if ACTIVATE:
        tl.store(ACTIVATED + base[:, None] * outer + n[None, :], acc * sigmoid(acc), mask=there)


@triton.jit(do_not_specialize=["rows", "share", "shares"])
def _sum_products(
    G, X, OUT, rows, share, shares, outer, inner, M: tl.constexpr, TOTAL: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """OUT [M,shares,outer inner]: Σ_rows G [rows,M,outer] X [rows,M,inner] over `share` rows each.

    TOTAL: followed by the sums of G. Grid: blocks of the outer and of the inner columns, components and shares.
    """
    o = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    i = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    component, number = tl.program_id(2) // shares, tl.program_id(2) % shares
    begin = number * share
    end = tl.minimum(begin + share, rows)
    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for first in range(begin, end, STEP):
        row = first + tl.arange(0, STEP)
        base = (row.to(tl.int64) * M + component)[:, None]
        here = row < end
        g = tl.load(G + base * outer + o[None, :], mask=here[:, None] & (o < outer)[None, :], other=0.0)
        x = tl.load(X + base * inner + i[None, :], mask=here[:, None] & (i < inner)[None, :], other=0.0)
        acc = exact_product(acc, g.T, x)
        if TOTAL:
            total += tl.sum(g, 0)
    out = OUT + tl.program_id(2).to(tl.int64) * (outer * (inner + TOTAL))
    tl.store(out + o[:, None] * inner + i[None, :], acc, mask=(o < outer)[:, None] & (i < inner)[None, :])
    if TOTAL:
        tl.store(out + outer * inner + o, total, mask=(o < outer) & (tl.program_id(1) == 0))


@triton.jit(do_not_specialize=["shares"])
def _add_shares(SHARES, OUT, shares, width, M: tl.constexpr, BLOCK: tl.constexpr):
    """OUT [parts,width]: SHARES [M,shares,width] added up. Grid: blocks of the width, parts."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.program_id(1)
    first, last = part * part, (part + 1) * (part + 1)  # 0, 1 to 3, 4 to 8
    if M == 1:
        last = 1
    acc = tl.zeros((BLOCK,), tl.float32)
    for number in range(first * shares, last * shares):
        acc += tl.load(SHARES + tl.full((), 1, tl.int64) * number * width + at, mask=at < width, other=0.0)
    tl.store(OUT + part * width + at, acc, mask=at < width)


def multiply(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None, back: bool = False) -> torch.Tensor:
    """x W + bias: [rows,K] or [rows,9,K] with w [N,K] or [3,N,K]; with `back`, of shape [K,N] or [3,K,N], x w."""
    return _multiplied(x, w, bias, back, False)[0]


def multiply_silu(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """x W + bias, and SiLU of it."""
    return _multiplied(x, w, bias, False, True)


def _multiplied(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, back: bool, activate: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, inner, outer = len(x), x.shape[-1], w.shape[-1 if back else -2]
    many = x.shape[1] if x.dim() == 3 else 1
    out = x.new_empty(*x.shape[:-1], outer)
    activated = torch.empty_like(out) if activate else out
    if not out.numel():
        return out, activated
    sizes = LinearSizes.choose(rows * many)
    if back and rows * many >= MANY_ROWS:  # faster with a copy
        w, back = w.mT.contiguous(), False
    grid = (triton.cdiv(rows, sizes.rows), triton.cdiv(outer, sizes.columns), many)
    _multiply[grid](
        x, w, w if bias is None else bias, out, activated, rows, inner, outer, M=many, BACK=back,
        ADD=bias is not None, ACTIVATE=activate, ROWS=sizes.rows, COLUMNS=sizes.columns, STEP=sizes.step,
        num_warps=sizes.warps, num_stages=sizes.stages,
    )  # fmt: skip
    return out, activated


def in_weights(g: torch.Tensor, x: torch.Tensor, total: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Σ_rows g x: [O,I] from [rows,O] and [rows,I], or [3,O,I] from nine components; with `total` also Σ_rows g [O]."""
    rows, outer, inner = len(g), g.shape[-1], x.shape[-1]
    many = x.shape[1] if x.dim() == 3 else 1
    if many == 1 and rows >= MANY_ROWS and not total:
        return g.T @ x, None  # torch's product is faster here, where both operands are read along rows
    sizes, width, parts = LinearSizes.choose(rows * many), outer * inner + total * outer, 3 if many == NINE else 1
    if not rows:
        sums = g.new_zeros(parts, width)
    else:
        tiles = (triton.cdiv(outer, sizes.rows), triton.cdiv(inner, sizes.columns))
        wanted = min(triton.cdiv(PROGRAMS, tiles[0] * tiles[1] * many), triton.cdiv(rows, LEAST_SHARE))
        share = triton.cdiv(triton.cdiv(rows, wanted), sizes.step) * sizes.step
        shares = triton.cdiv(rows, share)
        found = g.new_empty(many, shares, width)
        _sum_products[(*tiles, many * shares)](
            g, x, found, rows, share, shares, outer, inner, M=many, TOTAL=int(total), ROWS=sizes.rows,
            COLUMNS=sizes.columns, STEP=sizes.step, num_warps=sizes.warps, num_stages=sizes.stages,
        )  # fmt: skip
        sums = found[0] if many * shares == 1 else g.new_empty(parts, width)
        if many * shares > 1:
            _add_shares[(triton.cdiv(width, 512), parts)](found, sums, shares, width, M=many, BLOCK=512)
    products = sums[:, : outer * inner].unflatten(1, (outer, inner))
    return products if many == NINE else products[0], sums[0, outer * inner :] if total else None
