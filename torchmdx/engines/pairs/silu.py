"""SiLU and its derivatives, each in one kernel. A loss on forces needs the first two, many kernels in torch.

The last SiLU of a filter network is followed by a product with the cutoff function, one factor per row. Both are one
kernel in each of the three passes, with the memory traffic of the activation only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchmdx.engines.pairs.multilinear import inputs_with_gradient

MOST_DERIVATIVES = 3


class _Scaled(torch.autograd.Function):
    """silu⁽ⁿ⁾(x) · g."""

    @staticmethod
    def forward(ctx: Any, order: int, x: Tensor, g: Tensor | None) -> Tensor:
        ctx.order = order
        ctx.save_for_backward(x, g)
        if x.is_cuda:
            return _kernels().scaled_derivative(order, x, g)
        value = derivative(order, x)
        return value if g is None else value * g

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, g = ctx.saved_tensors
        cotangent = gradients[0].contiguous()
        for_x, for_g = inputs_with_gradient(ctx, (x, g), 1)
        if x.is_cuda and not torch.is_grad_enabled() and g is not None and for_x and for_g:
            return None, *_kernels().both_gradients(ctx.order, x, g, cotangent)
        in_x = in_g = None
        if for_x:
            in_x = _Scaled.apply(ctx.order + 1, x, cotangent if g is None else cotangent * g)
        if g is not None and for_g:
            in_g = _Scaled.apply(ctx.order, x, cotangent)
        return None, in_x, in_g


class _Rows(torch.autograd.Function):
    """silu(x) e, x [P,K] and e [P,1]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, e: Tensor) -> Tensor:
        ctx.save_for_backward(x, e)
        return _kernels().scaled_rows(0, x, e, None) if x.is_cuda else derivative(0, x) * e

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, e = ctx.saved_tensors
        return _RowsGradients.apply(*inputs_with_gradient(ctx, (x, e)), x, e, gradients[0].contiguous())


class _RowsGradients(torch.autograd.Function):
    """Gradients of silu(x) e from h: silu'(x) e h for x, and Σ_k silu(x) h for e, those that are needed."""

    @staticmethod
    def forward(
        ctx: Any, for_x: bool, for_e: bool, x: Tensor, e: Tensor, h: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        ctx.save_for_backward(x, e, h)
        if x.is_cuda:
            return _kernels().rows_gradients(x, e, h) if for_e else (_kernels().scaled_rows(1, x, e, h), None)
        in_e = (derivative(0, x) * h).sum(1, keepdim=True) if for_e else None
        return derivative(1, x) * h * e if for_x else None, in_e

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        x, e, h = ctx.saved_tensors
        t, s = gradients
        for_x, for_e, for_h = inputs_with_gradient(ctx, (x, e, h), 2)
        if x.is_cuda and not torch.is_grad_enabled() and t is not None and s is not None and not for_e:
            return None, None, *_both_rows(x, e, h, t, s)
        in_x, in_e, in_h = [], [], []
        if t is not None:
            in_x += [_Scaled.apply(2, x, e * h * t)] if for_x else []
            in_e += [_Scaled.apply(1, x, h * t).sum(1, keepdim=True)] if for_e else []
            in_h += [_Scaled.apply(1, x, e * t)] if for_h else []
        if s is not None:
            in_x += [_Scaled.apply(1, x, h * s)] if for_x else []
            in_h += [_Scaled.apply(0, x, s.expand_as(x).contiguous())] if for_h else []
        return None, None, *(sum(shares) if shares else None for shares in (in_x, in_e, in_h))


def _both_rows(x: Tensor, e: Tensor, h: Tensor, t: Tensor, s: Tensor) -> tuple[Tensor, None, Tensor]:
    in_x, in_h = _kernels().rows_gradients_again(x, e, h, t.contiguous(), s.contiguous())
    return in_x, None, in_h


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
        raise RuntimeError(f"the derivative of silu must be of order <= {MOST_DERIVATIVES}, got {order}")
    return p * (3 * q + x * (q * q - 2 * p))


def activate(module: nn.Module, x: Tensor) -> Tensor:
    """Applies an activation: SiLU by the kernels here, others by their module."""
    if isinstance(module, nn.SiLU):
        return _Scaled.apply(0, x.contiguous(), None)
    return module(x)


def scaled_slope(x: Tensor, g: Tensor, s: Tensor | None) -> Tensor:
    """silu'(x) g + s, differentiable."""
    if x.is_cuda and not torch.is_grad_enabled():
        return _kernels().scaled_derivative(1, x, g, None if s is None else s.contiguous())
    found = _Scaled.apply(1, x, g)
    return found if s is None else found + s


def activate_rows(x: Tensor, factor: Tensor) -> Tensor:
    """SiLU of x [P,K], times one factor per row [P,1]."""
    return _Rows.apply(x.contiguous(), factor.contiguous())


def _kernels() -> Any:
    from torchmdx.engines.pairs.kernels import silu as silu_kernels

    return silu_kernels
