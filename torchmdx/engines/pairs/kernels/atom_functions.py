"""Functions of the tensors of one atom, channel by channel, with their first and second derivatives, on a GPU.

Tensors are [N,9,C]; a program takes one atom and a block of channels. G and T are the gradients that the first and the
second backward pass bring: a kernel `_..._gradient` computes the derivatives of <G, function>, `_..._second` those of
<T, first derivative>. FACTOR [N] multiplies products of matrices; without HAS_FACTOR it is one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from torchmdx.engines.gpu.triton.nine import add9, load9, scale9, store9, to_matrix
from torchmdx.engines.pairs.kernels.multilinear import WARPS, blocks, components_of, here, of_dual, of_metric, turned


@triton.jit
def both_orders(a, b):
    """Components of AB + BA."""
    m, n = to_matrix(a), to_matrix(b)
    return components_of((
        2 * m[0] * n[0] + m[1] * n[3] + m[2] * n[6] + n[1] * m[3] + n[2] * m[6],
        m[0] * n[1] + m[1] * n[4] + m[2] * n[7] + n[0] * m[1] + n[1] * m[4] + n[2] * m[7],
        m[0] * n[2] + m[1] * n[5] + m[2] * n[8] + n[0] * m[2] + n[1] * m[5] + n[2] * m[8],
        m[3] * n[0] + m[4] * n[3] + m[5] * n[6] + n[3] * m[0] + n[4] * m[3] + n[5] * m[6],
        2 * m[4] * n[4] + m[3] * n[1] + m[5] * n[7] + n[3] * m[1] + n[5] * m[7],
        m[3] * n[2] + m[4] * n[5] + m[5] * n[8] + n[3] * m[2] + n[4] * m[5] + n[5] * m[8],
        m[6] * n[0] + m[7] * n[3] + m[8] * n[6] + n[6] * m[0] + n[7] * m[3] + n[8] * m[6],
        m[6] * n[1] + m[7] * n[4] + m[8] * n[7] + n[6] * m[1] + n[7] * m[4] + n[8] * m[7],
        2 * m[8] * n[8] + m[6] * n[2] + m[7] * n[5] + n[6] * m[2] + n[7] * m[5],
    ))  # fmt: skip


@triton.jit
def both_orders_gradient(b, g):
    """The derivative of <G, AB + BA> by A."""
    return of_metric(both_orders(of_dual(g), turned(b)))


@triton.jit
def inner(a, b):
    """Σ of the products of components."""
    return (
        a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3] + a[4] * b[4] + a[5] * b[5] + a[6] * b[6] + a[7] * b[7]
        + a[8] * b[8]
    )  # fmt: skip


@triton.jit
def _normalise(X, OUT, C: tl.constexpr, BLOCK: tl.constexpr):
    """X / (|X|² + 1)."""
    i, c, there = here(C, BLOCK)
    at = i * 9 * C + c
    x = load9(X + at, there, C)
    store9(OUT + at, scale9(x, 1 / (1 + inner(x, of_metric(x)))), there, C)


@triton.jit
def _normalise_gradient(X, G, OUT, C: tl.constexpr, BLOCK: tl.constexpr):
    """r G - 2 r² (G·X) WX, with r = 1 / (|X|² + 1) and |X|² = X·WX."""
    i, c, there = here(C, BLOCK)
    at = i * 9 * C + c
    x, g = load9(X + at, there, C), load9(G + at, there, C)
    w = of_metric(x)
    r = 1 / (1 + inner(x, w))
    q = -2 * r * r * inner(x, g)
    store9(OUT + at, add9(scale9(g, r), scale9(w, q)), there, C)


@triton.jit
def _normalise_second(X, G, T, IN_X, IN_G, C: tl.constexpr, BLOCK: tl.constexpr):
    """Derivatives of r T·G - 2 r² (G·X) (T·WX) by X and G."""
    i, c, there = here(C, BLOCK)
    at = i * 9 * C + c
    x, g, t = load9(X + at, there, C), load9(G + at, there, C), load9(T + at, there, C)
    w, v = of_metric(x), of_metric(t)
    r = 1 / (1 + inner(x, w))
    gx, tx, tg = inner(x, g), inner(t, w), inner(t, g)
    q = -2 * r * r
    p = q * tx
    store9(IN_G + at, add9(scale9(t, r), scale9(x, p)), there, C)
    a, b = q * (tg - 4 * r * gx * tx), q * gx
    store9(IN_X + at, add9(add9(scale9(w, a), scale9(v, b)), scale9(g, p)), there, C)


@triton.jit
def _factor(FACTOR, like, HAS_FACTOR: tl.constexpr):
    if HAS_FACTOR:
        return tl.load(FACTOR + tl.program_id(0))
    else:
        return tl.full((), 1, like.dtype)


@triton.jit
def _product(Y, M, FACTOR, OUT, HAS_FACTOR: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """f (YM + MY)."""
    i, c, there = here(C, BLOCK)
    at = i * 9 * C + c
    y, m = load9(Y + at, there, C), load9(M + at, there, C)
    store9(OUT + at, scale9(both_orders(y, m), _factor(FACTOR, y[0], HAS_FACTOR)), there, C)


@triton.jit
def _product_gradient(Y, M, G, FACTOR, IN_Y, IN_M, HAS_FACTOR: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """Derivatives of f <G, YM + MY> by Y and M."""
    i, c, there = here(C, BLOCK)
    at = i * 9 * C + c
    g = load9(G + at, there, C)
    g = scale9(g, _factor(FACTOR, g[0], HAS_FACTOR))
    store9(IN_Y + at, both_orders_gradient(load9(M + at, there, C), g), there, C)
    store9(IN_M + at, both_orders_gradient(load9(Y + at, there, C), g), there, C)


@triton.jit
def _product_second(
    Y, M, G, T, S, FACTOR, IN_Y, IN_M, IN_G, HAS_FACTOR: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr
):
    """Derivatives of f <G, TM + MT + YS + SY> by Y, M and G: T and S come back for Y and M."""
    i, c, there = here(C, BLOCK)
    at = i * 9 * C + c
    g = load9(G + at, there, C)
    f = _factor(FACTOR, g[0], HAS_FACTOR)
    g, t = scale9(g, f), load9(T + at, there, C)
    store9(IN_M + at, both_orders_gradient(t, g), there, C)
    in_g = both_orders(t, load9(M + at, there, C))
    s = load9(S + at, there, C)
    store9(IN_Y + at, both_orders_gradient(s, g), there, C)
    in_g = add9(in_g, both_orders(s, load9(Y + at, there, C)))
    store9(IN_G + at, scale9(in_g, f), there, C)


@triton.jit
def _update(X, D, FACTOR, OUT, HAS_FACTOR: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """X + D + f DD."""
    i, c, there = here(C, BLOCK)
    at = i * 9 * C + c
    x, d = load9(X + at, there, C), load9(D + at, there, C)
    f = _factor(FACTOR, x[0], HAS_FACTOR) * 0.5
    store9(OUT + at, add9(add9(x, d), scale9(both_orders(d, d), f)), there, C)


@triton.jit
def _update_gradient(D, G, FACTOR, IN_D, HAS_FACTOR: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """The derivative of <G, D + f DD> by D."""
    i, c, there = here(C, BLOCK)
    at = i * 9 * C + c
    d, g = load9(D + at, there, C), load9(G + at, there, C)
    f = _factor(FACTOR, g[0], HAS_FACTOR)
    store9(IN_D + at, add9(g, scale9(both_orders_gradient(d, g), f)), there, C)


@triton.jit
def _update_second(D, G, T, FACTOR, IN_D, IN_G, HAS_FACTOR: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """Derivatives of <G, T + f (TD + DT)> by D and G."""
    i, c, there = here(C, BLOCK)
    at = i * 9 * C + c
    t, g = load9(T + at, there, C), load9(G + at, there, C)
    f = _factor(FACTOR, t[0], HAS_FACTOR)
    store9(IN_D + at, scale9(both_orders_gradient(t, g), f), there, C)
    store9(IN_G + at, add9(t, scale9(both_orders(t, load9(D + at, there, C)), f)), there, C)


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
