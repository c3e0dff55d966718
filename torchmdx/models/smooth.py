"""SiLU and its derivatives, each in one kernel: a loss on forces needs two of them, which torch makes of many."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchmdx.models.wanted import wanted

MOST_DERIVATIVES = 3


class _Scaled(torch.autograd.Function):
    """silu⁽ⁿ⁾(x) · g."""

    @staticmethod
    def forward(ctx: Any, order: int, x: Tensor, g: Tensor | None) -> Tensor:
        ctx.order = order
        ctx.save_for_backward(x, g)
        if x.is_cuda:
            from torchmdx.models.kernels.smooth import scaled_derivative

            return scaled_derivative(order, x, g)
        value = derivative(order, x)
        return value if g is None else value * g

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, g = ctx.saved_tensors
        cotangent = gradients[0].contiguous()
        for_x, for_g = wanted(ctx, (x, g), 1)
        if x.is_cuda and not torch.is_grad_enabled() and g is not None and for_x and for_g:
            from torchmdx.models.kernels.smooth import both_gradients

            return None, *both_gradients(ctx.order, x, g, cotangent)
        in_x = in_g = None
        if for_x:
            in_x = _Scaled.apply(ctx.order + 1, x, cotangent if g is None else cotangent * g)
        if g is not None and for_g:
            in_g = _Scaled.apply(ctx.order, x, cotangent)
        return None, in_x, in_g


def derivative(order: int, x: Tensor) -> Tensor:
    """silu⁽ⁿ⁾(x), n from 0 to 3."""
    s = torch.sigmoid(x)
    if order == 0:
        return x * s
    if order == 1:
        return s * (1 + x * (1 - s))
    p, q = s * (1 - s), 1 - 2 * s
    if order == 2:
        return p * (2 + x * q)
    if order > MOST_DERIVATIVES:
        raise RuntimeError(f"silu has derivatives up to number {MOST_DERIVATIVES} here, got {order}")
    return p * (3 * q + x * (q * q - 2 * p))


def activate(module: nn.Module, x: Tensor) -> Tensor:
    """The activation of a module: SiLU by its own kernels, any other as the module has it."""
    if isinstance(module, nn.SiLU):
        return _Scaled.apply(0, x.contiguous(), None)
    return module(x)
