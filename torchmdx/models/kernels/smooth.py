"""Derivatives of SiLU times a gradient, element by element."""

import torch
import triton
import triton.language as tl

from torchmdx.models.kernels.activations import sigmoid

BLOCK = 1024


@triton.jit
def derivative(x, ORDER: tl.constexpr):
    """silu⁽ORDER⁾(x); see `torchmdx.models.smooth.derivative`."""
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
def _scaled(X, G, OUT, count, ORDER: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr):
    """OUT = silu⁽ORDER⁾(X), times G with SCALE."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < count
    value = derivative(tl.load(X + at, mask=there, other=0.0), ORDER)
    if SCALE:
        value *= tl.load(G + at, mask=there, other=0.0)
    tl.store(OUT + at, value, mask=there)


@triton.jit
def _both(X, G, H, IN_X, IN_G, count, ORDER: tl.constexpr, BLOCK: tl.constexpr):
    """Of silu⁽ORDER⁾(X) G with the gradient H: its gradients in X and G."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < count
    x = tl.load(X + at, mask=there, other=0.0)
    g = tl.load(G + at, mask=there, other=0.0)
    h = tl.load(H + at, mask=there, other=0.0)
    tl.store(IN_X + at, derivative(x, ORDER + 1) * g * h, mask=there)
    tl.store(IN_G + at, derivative(x, ORDER) * h, mask=there)


def scaled_derivative(order: int, x: torch.Tensor, g: torch.Tensor | None) -> torch.Tensor:
    out = torch.empty_like(x)
    if out.numel():
        scale = g is not None
        _scaled[(triton.cdiv(x.numel(), BLOCK),)](x, g, out, x.numel(), ORDER=order, SCALE=scale, BLOCK=BLOCK)
    return out


def both_gradients(order: int, x: torch.Tensor, g: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    in_x, in_g = torch.empty_like(x), torch.empty_like(x)
    if x.numel():
        _both[(triton.cdiv(x.numel(), BLOCK),)](x, g, h, in_x, in_g, x.numel(), ORDER=order, BLOCK=BLOCK)
    return in_x, in_g
