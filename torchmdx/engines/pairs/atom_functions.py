"""Functions of the tensors of one atom in an interaction: normalization, product with the message, update.

On a GPU each of them, its first derivative and the derivatives of that are one kernel apiece. Elsewhere, and for
derivatives beyond the second, they are composed of the forms in `torchmdx.engines.pairs.products`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchmdx.engines.pairs.filters import ROWS
from torchmdx.engines.pairs.multilinear import apart, partial, quadratic
from torchmdx.engines.pairs.products import PartSums, Products

SCALE, NORM, BOTH_ORDERS = PartSums(parts=1), PartSums(parts=1, metric=True), Products(symmetric=True)


def normalised(x: Tensor) -> Tensor:
    """X / (|X|² + 1), x [N,9,C]."""
    if kernels := atom_kernels_of(x):
        return _Normalised.apply(kernels, x.contiguous())
    return _composed_normalised(x)


def product(y: Tensor, m: Tensor, factor: Tensor | None) -> Tensor:
    """f (YM + MY), y and m [N,9,C]; factor [N,1]: f, None for 1."""
    if kernels := atom_kernels_of(y):
        return _Product.apply(kernels, y.contiguous(), m.contiguous(), factor)
    return _composed_product(y, m, factor)


def updated(x: Tensor, d: Tensor, factor: Tensor | None) -> Tensor:
    """X + D + f DD, x and d [N,9,C]; factor [N,1]: f, None for 1."""
    if kernels := atom_kernels_of(x):
        return _Updated.apply(kernels, x.contiguous(), d.contiguous(), factor)
    return x + _composed_change(d, factor)


def times(factor: Tensor | None, x: Tensor) -> Tensor:
    """x [N,9,C] times factor [N,1]."""
    if factor is None:
        return x
    return partial(ROWS, 2, x.flatten(1), factor, None).unflatten(1, (9, -1))


def _composed_normalised(x: Tensor) -> Tensor:
    return partial(SCALE, 0, None, x, 1 / (quadratic(NORM, x) + 1))


def _composed_product(y: Tensor, m: Tensor, factor: Tensor | None) -> Tensor:
    return times(factor, partial(BOTH_ORDERS, 2, y, m, None))


def _composed_change(d: Tensor, factor: Tensor | None) -> Tensor:
    # DD = (DD + DD) / 2, because the form of the symmetric product is symmetric in its arguments.
    square = quadratic(BOTH_ORDERS, d)
    return torch.add(d, square, alpha=0.5) if factor is None else d + times(factor / 2, square)


class _Normalised(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernels: Any, x: Tensor) -> Tensor:
        ctx.kernels = kernels
        ctx.save_for_backward(x)
        return kernels.normalise(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, _NormalisedGradient.apply(ctx.kernels, *ctx.saved_tensors, gradients[0].contiguous())


class _NormalisedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernels: Any, x: Tensor, g: Tensor) -> Tensor:
        ctx.kernels = kernels
        ctx.save_for_backward(x, g)
        return kernels.normalise_gradient(x, g)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, g = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, *_composed_second(_composed_normalised, (x,), g, gradients)
        return None, *ctx.kernels.normalise_second(x, g, gradients[0].contiguous())


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernels: Any, y: Tensor, m: Tensor, factor: Tensor | None) -> Tensor:
        ctx.kernels, ctx.factor = kernels, factor
        ctx.save_for_backward(y, m)
        return kernels.product(y, m, factor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        y, m = ctx.saved_tensors
        return None, *_ProductGradient.apply(ctx.kernels, y, m, gradients[0].contiguous(), ctx.factor), None


class _ProductGradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernels: Any, y: Tensor, m: Tensor, g: Tensor, factor: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ctx.kernels, ctx.factor = kernels, factor
        ctx.save_for_backward(y, m, g)
        return kernels.product_gradient(y, m, g, factor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        y, m, g = ctx.saved_tensors
        if torch.is_grad_enabled():
            compose = lambda y, m: _composed_product(y, m, ctx.factor)  # noqa: E731
            return None, *_composed_second(compose, (y, m), g, gradients), None
        t, s = (x.contiguous() for x in gradients)
        return None, *ctx.kernels.product_second(y, m, g, t, s, ctx.factor), None


class _Updated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernels: Any, x: Tensor, d: Tensor, factor: Tensor | None) -> Tensor:
        ctx.kernels, ctx.factor = kernels, factor
        ctx.save_for_backward(d)
        return kernels.update(x, d, factor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        g = gradients[0].contiguous()
        return None, g, _UpdatedGradient.apply(ctx.kernels, *ctx.saved_tensors, g, ctx.factor), None


class _UpdatedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernels: Any, d: Tensor, g: Tensor, factor: Tensor | None) -> Tensor:
        ctx.kernels, ctx.factor = kernels, factor
        ctx.save_for_backward(d, g)
        return kernels.update_gradient(d, g, factor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        d, g = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, *_composed_second(lambda d: _composed_change(d, ctx.factor), (d,), g, gradients), None
        return None, *ctx.kernels.update_second(d, g, gradients[0].contiguous(), ctx.factor), None


def _composed_second(
    compose: Callable[..., Tensor], inputs: Sequence[Tensor], g: Tensor, gradients: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """Derivatives, by inputs and g, of the gradients that came back for the first derivatives of <g, function>."""
    with torch.enable_grad():
        by = apart(*inputs, g)
        *inputs, g = by
        found = torch.autograd.grad(compose(*inputs), inputs, g, create_graph=True)
        wanted = [x for x in by if x.requires_grad]
        second = iter(torch.autograd.grad(found, wanted, gradients, create_graph=True, allow_unused=True))
    return tuple(next(second) if x.requires_grad else None for x in by)


def atom_kernels_of(x: Tensor) -> Any:
    """The kernels for a tensor on a GPU, else None."""
    if not x.is_cuda:
        return None
    from torchmdx.engines.pairs.kernels import atom_functions as kernels

    return kernels
