"""Derivatives of SiLU times a gradient, element by element."""

import torch
import triton
import triton.language as tl

from torchmdx.engines.gpu.triton.activations import sigmoid

BLOCK = 1024
# Tiles of [P,K]: rows per program, and columns per block.
ROWS, COLUMNS = 8, 128


@triton.jit
def derivative(x, ORDER: tl.constexpr):
    """silu⁽ORDER⁾(x); see `torchmdx.engines.pairs.silu.derivative`."""
    s = sigmoid(x)
    p, q = s * (1 - s), 1 - 2 * s
    if ORDER == 0:
        value = x * s
    elif ORDER == 1:
        value = s * (1 + x * (1 - s))
    elif ORDER == 2:
        value = p * (2 + x * q)
    else:
        tl.static_assert(ORDER == 3)
        value = p * (3 * q + x * (q * q - 2 * p))
    return value


@triton.jit
def _scaled(X, G, S, OUT, count, ORDER: tl.constexpr, SCALE: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr):
    """OUT = silu⁽ORDER⁾(X), times G with SCALE, plus S with ADD."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < count
    value = derivative(tl.load(X + at, mask=there, other=0.0), ORDER)
    if SCALE:
        value *= tl.load(G + at, mask=there, other=0.0)
    if ADD:
        value += tl.load(S + at, mask=there, other=0.0)
    tl.store(OUT + at, value, mask=there)


@triton.jit
def _both(X, G, H, IN_X, IN_G, count, ORDER: tl.constexpr, BLOCK: tl.constexpr):
    """Gradients of silu⁽ORDER⁾(X) G by X and G, from the gradient H."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < count
    x = tl.load(X + at, mask=there, other=0.0)
    g = tl.load(G + at, mask=there, other=0.0)
    h = tl.load(H + at, mask=there, other=0.0)
    tl.store(IN_X + at, derivative(x, ORDER + 1) * g * h, mask=there)
    tl.store(IN_G + at, derivative(x, ORDER) * h, mask=there)


@triton.jit
def _scaled_rows(
    X, E, G, OUT, rows, K: tl.constexpr, ORDER: tl.constexpr, SCALE: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """OUT [P,K] = silu⁽ORDER⁾(X) E, one factor of E [P] per row, times G with SCALE. Grid: blocks of rows, columns."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = row.to(tl.int64)[:, None] * K + k[None, :]
    there = (row < rows)[:, None] & (k < K)[None, :]
    value = derivative(tl.load(X + at, mask=there, other=0.0), ORDER)
    value *= tl.load(E + row, mask=row < rows, other=0.0)[:, None]
    if SCALE:
        value *= tl.load(G + at, mask=there, other=0.0)
    tl.store(OUT + at, value, mask=there)


@triton.jit
def _rows_gradients(X, E, H, IN_X, IN_E, rows, K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """IN_X [P,K] = silu'(X) E H and IN_E [P] = Σ_k silu(X) H. Grid: blocks of rows."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    e = tl.load(E + row, mask=row < rows, other=0.0)
    total = tl.zeros((ROWS, BLOCK), X.dtype.element_ty)
    for start in tl.static_range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        at = row.to(tl.int64)[:, None] * K + k[None, :]
        there = (row < rows)[:, None] & (k < K)[None, :]
        x = tl.load(X + at, mask=there, other=0.0)
        h = tl.load(H + at, mask=there, other=0.0)
        total += derivative(x, 0) * h
        tl.store(IN_X + at, derivative(x, 1) * h * e[:, None], mask=there)
    tl.store(IN_E + row, tl.sum(total, 1), mask=row < rows)


@triton.jit
def _rows_gradients_again(X, E, H, T, S, IN_X, IN_H, rows, K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Gradients of `_rows_gradients` by X and H, from gradients T [P,K] and S [P]. Grid as of `_scaled_rows`."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = row.to(tl.int64)[:, None] * K + k[None, :]
    there = (row < rows)[:, None] & (k < K)[None, :]
    x = tl.load(X + at, mask=there, other=0.0)
    h = tl.load(H + at, mask=there, other=0.0)
    et = tl.load(E + row, mask=row < rows, other=0.0)[:, None] * tl.load(T + at, mask=there, other=0.0)
    s = tl.load(S + row, mask=row < rows, other=0.0)[:, None]
    slope = derivative(x, 1)
    tl.store(IN_X + at, (derivative(x, 2) * et + slope * s) * h, mask=there)
    tl.store(IN_H + at, slope * et + derivative(x, 0) * s, mask=there)


def scaled_rows(order: int, x: torch.Tensor, e: torch.Tensor, g: torch.Tensor | None) -> torch.Tensor:
    out = torch.empty_like(x)
    if out.numel():
        rows, width = x.shape
        _scaled_rows[_blocks(x)](
            x, e, g, out, rows, K=width, ORDER=order, SCALE=g is not None, ROWS=ROWS, BLOCK=COLUMNS
        )
    return out


def rows_gradients(x: torch.Tensor, e: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    in_x, in_e = torch.empty_like(x), torch.zeros_like(e)
    if x.numel():
        _rows_gradients[_blocks(x)[:1]](x, e, h, in_x, in_e, len(x), K=x.shape[1], ROWS=ROWS, BLOCK=COLUMNS)
    return in_x, in_e


def rows_gradients_again(
    x: torch.Tensor, e: torch.Tensor, h: torch.Tensor, t: torch.Tensor, s: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    in_x, in_h = torch.empty_like(x), torch.empty_like(x)
    if x.numel():
        _rows_gradients_again[_blocks(x)](x, e, h, t, s, in_x, in_h, len(x), K=x.shape[1], ROWS=ROWS, BLOCK=COLUMNS)
    return in_x, in_h


def _blocks(x: torch.Tensor) -> tuple[int, int]:
    return triton.cdiv(len(x), ROWS), triton.cdiv(x.shape[1], COLUMNS)


def scaled_derivative(
    order: int, x: torch.Tensor, g: torch.Tensor | None, s: torch.Tensor | None = None
) -> torch.Tensor:
    """silu⁽order⁾(x) g + s."""
    out = torch.empty_like(x)
    if out.numel():
        given = dict(SCALE=g is not None, ADD=s is not None)
        _scaled[(triton.cdiv(x.numel(), BLOCK),)](x, g, s, out, x.numel(), ORDER=order, BLOCK=BLOCK, **given)
    return out


def both_gradients(order: int, x: torch.Tensor, g: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    in_x, in_g = torch.empty_like(x), torch.empty_like(x)
    if x.numel():
        _both[(triton.cdiv(x.numel(), BLOCK),)](x, g, h, in_x, in_g, x.numel(), ORDER=order, BLOCK=BLOCK)
    return in_x, in_g
