"""Directions, radial basis and cutoff function of pairs from their vectors, with their first derivatives, on a GPU.

The basis is `torchmdx.models.radial.ExpNormalBasis`. Rows are pairs, and a last row is an atom with itself, at distance
0, which is constant. The derivative is linear in the gradients that it is given, so its own derivative by them is the
change of the values along a change of the vectors.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from torchmdx.engines.gpu.triton.nine import load3, store3, store9

ROWS, WARPS = 32, 4
PI = tl.constexpr(math.pi)


@triton.jit
def _unit(V, row, there):
    """Unit vector and length of vectors [P,3]; (1, 0, 0) and 1 beyond the pairs."""
    at = V + row.to(tl.int64) * 3
    x = tl.load(at, mask=there, other=1.0)
    y = tl.load(at + 1, mask=there, other=0.0)
    z = tl.load(at + 2, mask=there, other=0.0)
    d = tl.sqrt(x * x + y * y + z * z)
    return x / d, y / d, z / d, d


@triton.jit
def _cutoff(d, CUTOFF: tl.constexpr):
    """The cosine cutoff and its slope."""
    inside = d < CUTOFF
    angle = tl.minimum(d, CUTOFF) * (PI / CUTOFF)
    value = tl.where(inside, 0.5 * (tl.cos(angle) + 1.0), 0.0)
    return value, tl.where(inside, tl.sin(angle) * (-0.5 * PI / CUTOFF), 0.0)


@triton.jit
def _bumps(d, MEANS, BETAS, k, width, ALPHA: tl.constexpr):
    """Gaussians of each row and function, and their slopes."""
    mean = tl.load(MEANS + k, mask=k < width, other=0.0)[None, :]
    beta = tl.load(BETAS + k, mask=k < width, other=0.0)[None, :]
    nearness = tl.exp(-ALPHA * d)[:, None]
    bump = tl.exp(-beta * (nearness - mean) * (nearness - mean))
    return bump, bump * (2 * ALPHA) * beta * nearness * (nearness - mean)


@triton.jit(do_not_specialize=["pairs"])
def _values(
    V, MEANS, BETAS, DIRECTIONS, RADIAL, ENVELOPE, pairs, OWN: tl.constexpr, R: tl.constexpr, ALPHA: tl.constexpr,
    CUTOFF: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """DIRECTIONS [P+1,9], RADIAL [P+1,R] and ENVELOPE [P+1] of vectors V [P,3]. OWN: ENVELOPE of the last row."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, BLOCK)
    is_pair = row < pairs
    there = row <= pairs
    x, y, z, d = _unit(V, row, is_pair)
    d = tl.where(is_pair, d, 0.0)
    x, y, z = tl.where(is_pair, x, 0.0), tl.where(is_pair, y, 0.0), tl.where(is_pair, z, 0.0)
    third = tl.where(is_pair, 1.0, 0.0).to(d.dtype) / 3
    nine = (tl.zeros_like(d) + 1, x, y, z, x * x - third, x * y, x * z, y * y - third, y * z)
    store9(DIRECTIONS + row.to(tl.int64) * 9, nine, there, 1)
    value, _ = _cutoff(d, CUTOFF)
    tl.store(ENVELOPE + row, tl.where(is_pair, value, OWN), mask=there)
    bump, _ = _bumps(d, MEANS, BETAS, k, R, ALPHA)
    radial = RADIAL + row.to(tl.int64)[:, None] * R + k[None, :]
    tl.store(radial, value[:, None] * bump, mask=there[:, None] & (k < R)[None, :])


@triton.jit(do_not_specialize=["pairs"])
def _gradient(
    V, MEANS, BETAS, G, GR, GE, OUT, pairs, R: tl.constexpr, ALPHA: tl.constexpr, CUTOFF: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """OUT [P,3]: the derivative by V, from gradients G [P+1,9], GR [P+1,R] and GE [P+1]."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, BLOCK)
    there = row < pairs
    x, y, z, d = _unit(V, row, there)
    at = G + row.to(tl.int64) * 9
    g5, g6 = tl.load(at + 5, mask=there, other=0.0), tl.load(at + 6, mask=there, other=0.0)
    g8 = tl.load(at + 8, mask=there, other=0.0)
    gx = tl.load(at + 1, mask=there, other=0.0) + 2 * x * tl.load(at + 4, mask=there, other=0.0) + y * g5 + z * g6
    gy = tl.load(at + 2, mask=there, other=0.0) + 2 * y * tl.load(at + 7, mask=there, other=0.0) + x * g5 + z * g8
    gz = tl.load(at + 3, mask=there, other=0.0) + x * g6 + y * g8
    value, slope = _cutoff(d, CUTOFF)
    bump, bump_slope = _bumps(d, MEANS, BETAS, k, R, ALPHA)
    radial = GR + row.to(tl.int64)[:, None] * R + k[None, :]
    gr = tl.load(radial, mask=there[:, None] & (k < R)[None, :], other=0.0)
    along = tl.sum((slope[:, None] * bump + value[:, None] * bump_slope) * gr, 1)
    along += slope * tl.load(GE + row, mask=there, other=0.0)
    along -= (x * gx + y * gy + z * gz) / d
    store3(OUT + row.to(tl.int64) * 3, (gx / d + along * x, gy / d + along * y, gz / d + along * z), there, 1)


@triton.jit(do_not_specialize=["pairs"])
def _change(
    V, MEANS, BETAS, T, DIRECTIONS, RADIAL, ENVELOPE, pairs, R: tl.constexpr, ALPHA: tl.constexpr,
    CUTOFF: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The change of all values along a change T [P,3] of V; zero in the last row."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, BLOCK)
    is_pair = row < pairs
    there = row <= pairs
    x, y, z, d = _unit(V, row, is_pair)
    tx, ty, tz = load3(T + row.to(tl.int64) * 3, is_pair, 1)
    longer = x * tx + y * ty + z * tz
    tx, ty, tz = (tx - x * longer) / d, (ty - y * longer) / d, (tz - z * longer) / d
    mixed = (x * ty + y * tx, x * tz + z * tx, y * tz + z * ty)
    nine = (tl.zeros_like(d), tx, ty, tz, 2 * x * tx, mixed[0], mixed[1], 2 * y * ty, mixed[2])
    store9(DIRECTIONS + row.to(tl.int64) * 9, nine, there, 1)
    value, slope = _cutoff(d, CUTOFF)
    tl.store(ENVELOPE + row, slope * longer, mask=there)
    bump, bump_slope = _bumps(d, MEANS, BETAS, k, R, ALPHA)
    change = (slope[:, None] * bump + value[:, None] * bump_slope) * longer[:, None]
    tl.store(RADIAL + row.to(tl.int64)[:, None] * R + k[None, :], change, mask=there[:, None] & (k < R)[None, :])


def _options(means: torch.Tensor, cutoff: float) -> dict[str, object]:
    width = len(means)
    return dict(
        R=width, ALPHA=5.0 / cutoff, CUTOFF=cutoff, ROWS=ROWS, BLOCK=triton.next_power_of_2(width), num_warps=WARPS
    )


def _outputs(v: torch.Tensor, means: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = len(v) + 1
    return v.new_empty(rows, 9), v.new_empty(rows, len(means)), v.new_empty(rows, 1)


def values(v: torch.Tensor, means: torch.Tensor, betas: torch.Tensor, cutoff: float, own: bool):
    """Directions [P+1,9], basis [P+1,R] and cutoff function [P+1,1]."""
    out = _outputs(v, means)
    _values[(triton.cdiv(len(v) + 1, ROWS),)](v, means, betas, *out, len(v), OWN=float(own), **_options(means, cutoff))
    return out


def gradient(v, means, betas, cutoff: float, g: torch.Tensor, gr: torch.Tensor, ge: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(v)
    if len(v):
        _gradient[(triton.cdiv(len(v), ROWS),)](v, means, betas, g, gr, ge, out, len(v), **_options(means, cutoff))
    return out


def change(v: torch.Tensor, means: torch.Tensor, betas: torch.Tensor, cutoff: float, t: torch.Tensor):
    """Changes of the three values along a change t [P,3] of v."""
    out = _outputs(v, means)
    _change[(triton.cdiv(len(v) + 1, ROWS),)](v, means, betas, t, *out, len(v), **_options(means, cutoff))
    return out
