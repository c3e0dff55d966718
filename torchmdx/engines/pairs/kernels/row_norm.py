"""LayerNorm of rows [N,K] with its first and second derivatives, on a GPU.

With n = r (x - mean(x)), r = 1 / sqrt(variance + eps) and P(h) = r (h - mean(h) - n mean(h n)): y = w n + b, and the
derivative of <g, y> by x is P(w g). P is symmetric. Sums over rows, for the derivatives by weights, are left as shares
of the programs, each of which takes every PROGRAMS-th row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

PROGRAMS = 1056
WARPS = 4


@triton.jit
def _load(X, row, K: tl.constexpr, BLOCK: tl.constexpr):
    k = tl.arange(0, BLOCK)
    return tl.load(X + row.to(tl.int64) * K + k, mask=k < K, other=0.0)


@triton.jit
def _normal(x, K: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr):
    """n and r; n is 0 where there are no columns."""
    mean = tl.sum(x, 0) / K
    x = tl.where(tl.arange(0, BLOCK) < K, x - mean, 0.0)
    r = 1 / tl.sqrt(tl.sum(x * x, 0) / K + EPS)
    return x * r, r


@triton.jit
def _values(X, W, B, Y, K: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr):
    """y. Grid: rows."""
    k = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    n, _ = _normal(_load(X, row, K, BLOCK), K, EPS, BLOCK)
    y = tl.load(W + k, mask=k < K, other=0.0) * n + tl.load(B + k, mask=k < K, other=0.0)
    tl.store(Y + row.to(tl.int64) * K + k, y, mask=k < K)


@triton.jit(do_not_specialize=["rows"])
def _first(X, W, G, IN_X, SHARES, rows, WEIGHTS: tl.constexpr, K: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr):
    """IN_X: P(w g). WEIGHTS: SHARES [2,programs,K]: sums of g n, and of g. Grid: programs."""
    k = tl.arange(0, BLOCK)
    w = tl.load(W + k, mask=k < K, other=0.0)
    in_w, in_b = tl.zeros_like(w), tl.zeros_like(w)
    for number in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = tl.program_id(0) * 0 + number
        n, r = _normal(_load(X, row, K, BLOCK), K, EPS, BLOCK)
        g = _load(G, row, K, BLOCK)
        h = w * g
        found = r * (h - tl.sum(h, 0) / K - n * (tl.sum(h * n, 0) / K))
        tl.store(IN_X + row.to(tl.int64) * K + k, found, mask=k < K)
        in_w += g * n
        in_b += g
    if WEIGHTS:
        share = SHARES + tl.program_id(0) * K + k
        tl.store(share, in_w, mask=k < K)
        tl.store(share + tl.num_programs(0) * K, in_b, mask=k < K)


@triton.jit(do_not_specialize=["rows"])
def _second(X, W, G, T, IN_X, IN_G, SHARES, rows, K: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr):
    """Derivatives of s = <t, P(w g)> by x and g, and SHARES [programs,K] of that by w. Grid: programs.

    With h = w g: s = r (t·h - K mean(t) mean(h) - K mean(t n) mean(h n)); u is its derivative by n.
    """
    k = tl.arange(0, BLOCK)
    w = tl.load(W + k, mask=k < K, other=0.0)
    in_w = tl.zeros_like(w)
    for number in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = tl.program_id(0) * 0 + number
        n, r = _normal(_load(X, row, K, BLOCK), K, EPS, BLOCK)
        g = _load(G, row, K, BLOCK)
        t = _load(T, row, K, BLOCK)
        h = w * g
        mean_t, mean_h = tl.sum(t, 0) / K, tl.sum(h, 0) / K
        along_t, along_h = tl.sum(t * n, 0) / K, tl.sum(h * n, 0) / K
        mean_product = tl.sum(t * h, 0) / K
        p = r * (t - mean_t - n * along_t)
        at = row.to(tl.int64) * K + k
        tl.store(IN_G + at, w * p, mask=k < K)
        in_w += g * p
        u = -r * (t * along_h + h * along_t)
        mean_u = -r * (mean_t * along_h + mean_h * along_t)
        along_u = -2 * r * along_t * along_h
        s = r * (mean_product - mean_t * mean_h - along_t * along_h)
        tl.store(IN_X + at, r * (u - mean_u - n * (along_u + s)), mask=k < K)
    tl.store(SHARES + tl.program_id(0) * K + k, in_w, mask=k < K)


def values(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, eps: float) -> torch.Tensor:
    y = torch.empty_like(x)
    if x.numel():
        _values[(len(x),)](x, w, b, y, **_options(x, eps))
    return y


def first(
    x: torch.Tensor, w: torch.Tensor, g: torch.Tensor, eps: float, weights: bool
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Derivatives of <g, y> by x, and with `weights` by w and b."""
    in_x, programs = torch.empty_like(x), min(len(x), PROGRAMS)
    shares = x.new_empty(2, programs if weights else 0, x.shape[1])
    if x.numel():
        _first[(programs,)](x, w, g, in_x, shares, len(x), WEIGHTS=weights, **_options(x, eps))
    if not weights:
        return in_x, None, None
    sums = shares.sum(1)
    return in_x, sums[0], sums[1]


def second(
    x: torch.Tensor, w: torch.Tensor, g: torch.Tensor, t: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Derivatives by x, w and g of <t, derivative of <g, y> by x>."""
    in_x, in_g, programs = torch.empty_like(x), torch.empty_like(g), min(len(x), PROGRAMS)
    shares = x.new_empty(programs, x.shape[1])
    if x.numel():
        _second[(programs,)](x, w, g, t, in_x, in_g, shares, len(x), **_options(x, eps))
    return in_x, shares.sum(0), in_g


def _options(x: torch.Tensor, eps: float) -> dict[str, object]:
    return dict(K=x.shape[1], EPS=eps, BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=WARPS)
