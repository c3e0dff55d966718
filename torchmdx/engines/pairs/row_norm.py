"""LayerNorm whose derivatives, of which a loss on forces needs two, are one kernel each on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchmdx.engines.pairs.multilinear import inputs_with_gradient, second_derivatives


def normalised_rows(module: nn.LayerNorm, x: Tensor) -> Tensor:
    """The module's LayerNorm of x [N,K]."""
    if kernels := row_kernels_of(x):
        return _RowNorm.apply(kernels, module.eps, x.contiguous(), module.weight, module.bias)
    return module(x)


class _RowNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernels: Any, eps: float, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        ctx.kernels, ctx.eps = kernels, eps
        ctx.save_for_backward(x, w, b)
        return kernels.values(x, w, b, eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, w, b = ctx.saved_tensors
        g = gradients[0].contiguous()
        _, for_w, for_b = inputs_with_gradient(ctx, (x, w, b), 2)
        if not torch.is_grad_enabled():
            return None, None, *ctx.kernels.first(x, w, g, ctx.eps, for_w or for_b)
        in_x = _RowNormGradient.apply(ctx.kernels, ctx.eps, x, w, g)
        in_w = (g * _normal(x, ctx.eps)).sum(0) if for_w else None
        return None, None, in_x, in_w, g.sum(0) if for_b else None


class _RowNormGradient(torch.autograd.Function):
    """The derivative of <g, LayerNorm(x)> by x."""

    @staticmethod
    def forward(ctx: Any, kernels: Any, eps: float, x: Tensor, w: Tensor, g: Tensor) -> Tensor:
        ctx.kernels, ctx.eps = kernels, eps
        ctx.save_for_backward(x, w, g)
        return kernels.first(x, w, g, eps, False)[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, w, g = ctx.saved_tensors
        t = gradients[0].contiguous()
        if not torch.is_grad_enabled():
            return None, None, *ctx.kernels.second(x, w, g, t, ctx.eps)
        values = lambda x, w: w * _normal(x, ctx.eps)  # noqa: E731
        return None, None, *second_derivatives(values, (x, w), (g,), (t,), first=1)


def _normal(x: Tensor, eps: float) -> Tensor:
    return nn.functional.layer_norm(x, x.shape[-1:], eps=eps)


def row_kernels_of(x: Tensor) -> Any:
    """The kernels for a tensor on a GPU, else None."""
    if not x.is_cuda:
        return None
    from torchmdx.engines.pairs.kernels import row_norm as kernels

    return kernels
