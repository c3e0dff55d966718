"""Functions of the tensors of one atom, channel by channel, with their first and second derivatives, on a GPU.

Tensors are [N,9,C]; a program takes one atom and a block of channels. G and T are the gradients that the first and the
second backward pass bring: a kernel `_..._gradient` computes the derivatives of <G, function>, `_..._second` those of
<T, first derivative>. FACTOR [N] multiplies products of matrices; without HAS_FACTOR it is one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from torchmdx.engines.pairs.kernels.multilinear import (
    WARPS,
    blocks,
    load_nine,
    of_dual,
    of_metric,
    store_nine,
    to_nine,
)


@triton.jit
def both_orders(a0, a1, a2, a3, a4, a5, a6, a7, a8, b0, b1, b2, b3, b4, b5, b6, b7, b8):
    """Components of AB + BA."""
    m0, m1, m2, m3, m4, m5, m6, m7, m8 = to_nine(a0, a1, a2, a3, a4, a5, a6, a7, a8)
    n0, n1, n2, n3, n4, n5, n6, n7, n8 = to_nine(b0, b1, b2, b3, b4, b5, b6, b7, b8)
    xx = 2 * m0 * n0 + m1 * n3 + m2 * n6 + n1 * m3 + n2 * m6
    yy = 2 * m4 * n4 + m3 * n1 + m5 * n7 + n3 * m1 + n5 * m7
    zz = 2 * m8 * n8 + m6 * n2 + m7 * n5 + n6 * m2 + n7 * m5
    xy = m0 * n1 + m1 * n4 + m2 * n7 + n0 * m1 + n1 * m4 + n2 * m7
    xz = m0 * n2 + m1 * n5 + m2 * n8 + n0 * m2 + n1 * m5 + n2 * m8
    yx = m3 * n0 + m4 * n3 + m5 * n6 + n3 * m0 + n4 * m3 + n5 * m6
    yz = m3 * n2 + m4 * n5 + m5 * n8 + n3 * m2 + n4 * m5 + n5 * m8
    zx = m6 * n0 + m7 * n3 + m8 * n6 + n6 * m0 + n7 * m3 + n8 * m6
    zy = m6 * n1 + m7 * n4 + m8 * n7 + n6 * m1 + n7 * m4 + n8 * m7
    s = (xx + yy + zz) / 3
    return (
        s, (zy - yz) / 2, (xz - zx) / 2, (yx - xy) / 2, xx - s, (xy + yx) / 2, (xz + zx) / 2, yy - s, (yz + zy) / 2,
    )  # fmt: skip


@triton.jit
def both_orders_gradient(b0, b1, b2, b3, b4, b5, b6, b7, b8, g0, g1, g2, g3, g4, g5, g6, g7, g8):
    """The derivative of <G, AB + BA> by A."""
    g0, g1, g2, g3, g4, g5, g6, g7, g8 = of_dual(g0, g1, g2, g3, g4, g5, g6, g7, g8)
    o0, o1, o2, o3, o4, o5, o6, o7, o8 = both_orders(
        g0, g1, g2, g3, g4, g5, g6, g7, g8, b0, -b1, -b2, -b3, b4, b5, b6, b7, b8
    )
    return of_metric(o0, o1, o2, o3, o4, o5, o6, o7, o8)


@triton.jit
def inner(a0, a1, a2, a3, a4, a5, a6, a7, a8, b0, b1, b2, b3, b4, b5, b6, b7, b8):
    """Σ of the products of components."""
    return a0 * b0 + a1 * b1 + a2 * b2 + a3 * b3 + a4 * b4 + a5 * b5 + a6 * b6 + a7 * b7 + a8 * b8


@triton.jit
def _normalise(X, OUT, C: tl.constexpr, BLOCK: tl.constexpr):
    """X / (|X|² + 1)."""
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = c < C
    at = tl.program_id(0).to(tl.int64) * 9 * C + c
    x0, x1, x2, x3, x4, x5, x6, x7, x8 = load_nine(X + at, C, there)
    w0, w1, w2, w3, w4, w5, w6, w7, w8 = of_metric(x0, x1, x2, x3, x4, x5, x6, x7, x8)
    r = 1 / (1 + inner(x0, x1, x2, x3, x4, x5, x6, x7, x8, w0, w1, w2, w3, w4, w5, w6, w7, w8))
    store_nine(OUT + at, C, there, r * x0, r * x1, r * x2, r * x3, r * x4, r * x5, r * x6, r * x7, r * x8)


@triton.jit
def _normalise_gradient(X, G, OUT, C: tl.constexpr, BLOCK: tl.constexpr):
    """r G - 2 r² (G·X) WX, with r = 1 / (|X|² + 1) and |X|² = X·WX."""
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = c < C
    at = tl.program_id(0).to(tl.int64) * 9 * C + c
    x0, x1, x2, x3, x4, x5, x6, x7, x8 = load_nine(X + at, C, there)
    g0, g1, g2, g3, g4, g5, g6, g7, g8 = load_nine(G + at, C, there)
    w0, w1, w2, w3, w4, w5, w6, w7, w8 = of_metric(x0, x1, x2, x3, x4, x5, x6, x7, x8)
    r = 1 / (1 + inner(x0, x1, x2, x3, x4, x5, x6, x7, x8, w0, w1, w2, w3, w4, w5, w6, w7, w8))
    q = -2 * r * r * inner(x0, x1, x2, x3, x4, x5, x6, x7, x8, g0, g1, g2, g3, g4, g5, g6, g7, g8)
    store_nine(
        OUT + at, C, there, r * g0 + q * w0, r * g1 + q * w1, r * g2 + q * w2, r * g3 + q * w3, r * g4 + q * w4,
        r * g5 + q * w5, r * g6 + q * w6, r * g7 + q * w7, r * g8 + q * w8,
    )  # fmt: skip


@triton.jit
def _normalise_second(X, G, T, IN_X, IN_G, C: tl.constexpr, BLOCK: tl.constexpr):
    """Derivatives of r T·G - 2 r² (G·X) (T·WX) by X and G."""
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = c < C
    at = tl.program_id(0).to(tl.int64) * 9 * C + c
    x0, x1, x2, x3, x4, x5, x6, x7, x8 = load_nine(X + at, C, there)
    g0, g1, g2, g3, g4, g5, g6, g7, g8 = load_nine(G + at, C, there)
    t0, t1, t2, t3, t4, t5, t6, t7, t8 = load_nine(T + at, C, there)
    w0, w1, w2, w3, w4, w5, w6, w7, w8 = of_metric(x0, x1, x2, x3, x4, x5, x6, x7, x8)
    v0, v1, v2, v3, v4, v5, v6, v7, v8 = of_metric(t0, t1, t2, t3, t4, t5, t6, t7, t8)
    r = 1 / (1 + inner(x0, x1, x2, x3, x4, x5, x6, x7, x8, w0, w1, w2, w3, w4, w5, w6, w7, w8))
    gx = inner(x0, x1, x2, x3, x4, x5, x6, x7, x8, g0, g1, g2, g3, g4, g5, g6, g7, g8)
    tx = inner(t0, t1, t2, t3, t4, t5, t6, t7, t8, w0, w1, w2, w3, w4, w5, w6, w7, w8)
    tg = inner(t0, t1, t2, t3, t4, t5, t6, t7, t8, g0, g1, g2, g3, g4, g5, g6, g7, g8)
    q = -2 * r * r
    p = q * tx
    store_nine(
        IN_G + at, C, there, r * t0 + p * x0, r * t1 + p * x1, r * t2 + p * x2, r * t3 + p * x3, r * t4 + p * x4,
        r * t5 + p * x5, r * t6 + p * x6, r * t7 + p * x7, r * t8 + p * x8,
    )  # fmt: skip
    a = q * (tg - 4 * r * gx * tx)
    b = q * gx
    store_nine(
        IN_X + at, C, there, a * w0 + b * v0 + p * g0, a * w1 + b * v1 + p * g1, a * w2 + b * v2 + p * g2,
        a * w3 + b * v3 + p * g3, a * w4 + b * v4 + p * g4, a * w5 + b * v5 + p * g5, a * w6 + b * v6 + p * g6,
        a * w7 + b * v7 + p * g7, a * w8 + b * v8 + p * g8,
    )  # fmt: skip


@triton.jit
def _factor(FACTOR, like, HAS_FACTOR: tl.constexpr):
    if HAS_FACTOR:
        return tl.load(FACTOR + tl.program_id(0))
    else:
        return tl.full((), 1, like.dtype)


@triton.jit
def _product_gradient(Y, M, G, FACTOR, IN_Y, IN_M, HAS_FACTOR: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """Derivatives of f <G, YM + MY> by Y and M."""
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = c < C
    at = tl.program_id(0).to(tl.int64) * 9 * C + c
    g0, g1, g2, g3, g4, g5, g6, g7, g8 = load_nine(G + at, C, there)
    f = _factor(FACTOR, g0, HAS_FACTOR)
    g0, g1, g2, g3, g4, g5, g6, g7, g8 = f * g0, f * g1, f * g2, f * g3, f * g4, f * g5, f * g6, f * g7, f * g8
    x0, x1, x2, x3, x4, x5, x6, x7, x8 = load_nine(M + at, C, there)
    o0, o1, o2, o3, o4, o5, o6, o7, o8 = both_orders_gradient(
        x0, x1, x2, x3, x4, x5, x6, x7, x8, g0, g1, g2, g3, g4, g5, g6, g7, g8
    )
    store_nine(IN_Y + at, C, there, o0, o1, o2, o3, o4, o5, o6, o7, o8)
    x0, x1, x2, x3, x4, x5, x6, x7, x8 = load_nine(Y + at, C, there)
    o0, o1, o2, o3, o4, o5, o6, o7, o8 = both_orders_gradient(
        x0, x1, x2, x3, x4, x5, x6, x7, x8, g0, g1, g2, g3, g4, g5, g6, g7, g8
    )
    store_nine(IN_M + at, C, there, o0, o1, o2, o3, o4, o5, o6, o7, o8)


@triton.jit
def _product(Y, M, FACTOR, OUT, HAS_FACTOR: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """f (YM + MY)."""
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = c < C
    at = tl.program_id(0).to(tl.int64) * 9 * C + c
    x0, x1, x2, x3, x4, x5, x6, x7, x8 = load_nine(Y + at, C, there)
    m0, m1, m2, m3, m4, m5, m6, m7, m8 = load_nine(M + at, C, there)
    f = _factor(FACTOR, x0, HAS_FACTOR)
    o0, o1, o2, o3, o4, o5, o6, o7, o8 = both_orders(
        x0, x1, x2, x3, x4, x5, x6, x7, x8, m0, m1, m2, m3, m4, m5, m6, m7, m8
    )
    store_nine(OUT + at, C, there, f * o0, f * o1, f * o2, f * o3, f * o4, f * o5, f * o6, f * o7, f * o8)


@triton.jit
def _product_second(
    Y, M, G, T, S, FACTOR, IN_Y, IN_M, IN_G, HAS_FACTOR: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr
):
    """Derivatives of f <G, TM + MT + YS + SY> by Y, M and G: T and S come back for Y and M."""
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = c < C
    at = tl.program_id(0).to(tl.int64) * 9 * C + c
    g0, g1, g2, g3, g4, g5, g6, g7, g8 = load_nine(G + at, C, there)
    f = _factor(FACTOR, g0, HAS_FACTOR)
    g0, g1, g2, g3, g4, g5, g6, g7, g8 = f * g0, f * g1, f * g2, f * g3, f * g4, f * g5, f * g6, f * g7, f * g8
    t0, t1, t2, t3, t4, t5, t6, t7, t8 = load_nine(T + at, C, there)
    o0, o1, o2, o3, o4, o5, o6, o7, o8 = both_orders_gradient(
        t0, t1, t2, t3, t4, t5, t6, t7, t8, g0, g1, g2, g3, g4, g5, g6, g7, g8
    )
    store_nine(IN_M + at, C, there, o0, o1, o2, o3, o4, o5, o6, o7, o8)
    x0, x1, x2, x3, x4, x5, x6, x7, x8 = load_nine(M + at, C, there)
    p0, p1, p2, p3, p4, p5, p6, p7, p8 = both_orders(
        t0, t1, t2, t3, t4, t5, t6, t7, t8, x0, x1, x2, x3, x4, x5, x6, x7, x8
    )
    t0, t1, t2, t3, t4, t5, t6, t7, t8 = load_nine(S + at, C, there)
    o0, o1, o2, o3, o4, o5, o6, o7, o8 = both_orders_gradient(
        t0, t1, t2, t3, t4, t5, t6, t7, t8, g0, g1, g2, g3, g4, g5, g6, g7, g8
    )
    store_nine(IN_Y + at, C, there, o0, o1, o2, o3, o4, o5, o6, o7, o8)
    x0, x1, x2, x3, x4, x5, x6, x7, x8 = load_nine(Y + at, C, there)
    o0, o1, o2, o3, o4, o5, o6, o7, o8 = both_orders(
        t0, t1, t2, t3, t4, t5, t6, t7, t8, x0, x1, x2, x3, x4, x5, x6, x7, x8
    )
    store_nine(
        IN_G + at, C, there, f * (p0 + o0), f * (p1 + o1), f * (p2 + o2), f * (p3 + o3), f * (p4 + o4), f * (p5 + o5),
        f * (p6 + o6), f * (p7 + o7), f * (p8 + o8),
    )  # fmt: skip


@triton.jit
def _update(X, D, FACTOR, OUT, HAS_FACTOR: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """X + D + f DD."""
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = c < C
    at = tl.program_id(0).to(tl.int64) * 9 * C + c
    x0, x1, x2, x3, x4, x5, x6, x7, x8 = load_nine(X + at, C, there)
    d0, d1, d2, d3, d4, d5, d6, d7, d8 = load_nine(D + at, C, there)
    f = _factor(FACTOR, x0, HAS_FACTOR) * 0.5
    o0, o1, o2, o3, o4, o5, o6, o7, o8 = both_orders(
        d0, d1, d2, d3, d4, d5, d6, d7, d8, d0, d1, d2, d3, d4, d5, d6, d7, d8
    )
    store_nine(
        OUT + at, C, there, x0 + d0 + f * o0, x1 + d1 + f * o1, x2 + d2 + f * o2, x3 + d3 + f * o3, x4 + d4 + f * o4,
        x5 + d5 + f * o5, x6 + d6 + f * o6, x7 + d7 + f * o7, x8 + d8 + f * o8,
    )  # fmt: skip


@triton.jit
def _update_gradient(D, G, FACTOR, IN_D, HAS_FACTOR: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """The derivative of <G, D + f DD> by D."""
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = c < C
    at = tl.program_id(0).to(tl.int64) * 9 * C + c
    d0, d1, d2, d3, d4, d5, d6, d7, d8 = load_nine(D + at, C, there)
    g0, g1, g2, g3, g4, g5, g6, g7, g8 = load_nine(G + at, C, there)
    f = _factor(FACTOR, g0, HAS_FACTOR)
    o0, o1, o2, o3, o4, o5, o6, o7, o8 = both_orders_gradient(
        d0, d1, d2, d3, d4, d5, d6, d7, d8, g0, g1, g2, g3, g4, g5, g6, g7, g8
    )
    store_nine(
        IN_D + at, C, there, g0 + f * o0, g1 + f * o1, g2 + f * o2, g3 + f * o3, g4 + f * o4, g5 + f * o5,
        g6 + f * o6, g7 + f * o7, g8 + f * o8,
    )  # fmt: skip


@triton.jit
def _update_second(D, G, T, FACTOR, IN_D, IN_G, HAS_FACTOR: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """Derivatives of <G, T + f (TD + DT)> by D and G."""
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = c < C
    at = tl.program_id(0).to(tl.int64) * 9 * C + c
    t0, t1, t2, t3, t4, t5, t6, t7, t8 = load_nine(T + at, C, there)
    x0, x1, x2, x3, x4, x5, x6, x7, x8 = load_nine(G + at, C, there)
    f = _factor(FACTOR, t0, HAS_FACTOR)
    o0, o1, o2, o3, o4, o5, o6, o7, o8 = both_orders_gradient(
        t0, t1, t2, t3, t4, t5, t6, t7, t8, x0, x1, x2, x3, x4, x5, x6, x7, x8
    )
    store_nine(IN_D + at, C, there, f * o0, f * o1, f * o2, f * o3, f * o4, f * o5, f * o6, f * o7, f * o8)
    x0, x1, x2, x3, x4, x5, x6, x7, x8 = load_nine(D + at, C, there)
    o0, o1, o2, o3, o4, o5, o6, o7, o8 = both_orders(
        t0, t1, t2, t3, t4, t5, t6, t7, t8, x0, x1, x2, x3, x4, x5, x6, x7, x8
    )
    store_nine(
        IN_G + at, C, there, t0 + f * o0, t1 + f * o1, t2 + f * o2, t3 + f * o3, t4 + f * o4, t5 + f * o5, t6 + f * o6,
        t7 + f * o7, t8 + f * o8,
    )  # fmt: skip


def _run(kernel, inputs, factor, outputs: int):
    """The outputs of a kernel with these inputs [N,9,C]; factor: [N] or [N,1], or None, or False if it takes none."""
    some = inputs[0]
    out = [torch.empty_like(some) for _ in range(outputs)]
    (size, parts), options = blocks(some.shape[2]), {}
    extra = []
    if factor is not False:
        extra = [some if factor is None else factor.to(some.dtype)]
        options = dict(HAS_FACTOR=factor is not None)
    if some.numel():
        kernel[(len(some), parts)](*inputs, *extra, *out, **options, C=some.shape[2], BLOCK=size, num_warps=WARPS)
    return out[0] if outputs == 1 else tuple(out)


def normalise(x):
    return _run(_normalise, (x,), False, 1)


def normalise_gradient(x, g):
    return _run(_normalise_gradient, (x, g), False, 1)


def normalise_second(x, g, t):
    """Derivatives by x and g."""
    return _run(_normalise_second, (x, g, t), False, 2)


def product(y, m, factor):
    return _run(_product, (y, m), factor, 1)


def product_gradient(y, m, g, factor):
    return _run(_product_gradient, (y, m, g), factor, 2)


def product_second(y, m, g, t, s, factor):
    """Derivatives by y, m and g."""
    return _run(_product_second, (y, m, g, t, s), factor, 3)


def update(x, d, factor):
    return _run(_update, (x, d), factor, 1)


def update_gradient(d, g, factor):
    return _run(_update_gradient, (d, g), factor, 1)


def update_second(d, g, t, factor):
    """Derivatives by d and g."""
    return _run(_update_second, (d, g, t), factor, 2)
