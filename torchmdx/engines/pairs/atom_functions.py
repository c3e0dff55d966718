"""Functions of the tensors of one atom in an interaction: normalization, product with the message, update.

On a GPU each of them, its first derivative and the derivatives of that are one kernel apiece. Elsewhere, and for
derivatives beyond the second, they are composed of the forms in `torchmdx.engines.pairs.products`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchmdx.engines.pairs.filters import ROWS
from torchmdx.engines.pairs.multilinear import partial, quadratic, second_derivatives
from torchmdx.engines.pairs.products import PartSums, Products

SCALE, NORM, BOTH_ORDERS = PartSums(parts=1), PartSums(parts=1, metric=True), Products(symmetric=True)


def normalised(x: Tensor) -> Tensor:
    """X / (|X|² + 1), x [N,9,C]."""
    if kernels := atom_kernels_of(x):
        return _Function.apply(kernels, "normalise", (), x.contiguous())
    return _composed_normalised(x)


def product(y: Tensor, m: Tensor, factor: Tensor | None) -> Tensor:
    """f (YM + MY), y and m [N,9,C]; factor [N,1]: f, None for 1."""
    if kernels := atom_kernels_of(y):
        return _Function.apply(kernels, "product", (factor,), y.contiguous(), m.contiguous())
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


# Composed of forms, by the names of kernels; of the update what it adds to X.
COMPOSED: dict[str, Callable[..., Tensor]] = {
    "normalise": _composed_normalised,
    "product": _composed_product,
    "update": _composed_change,
}


class _Function(torch.autograd.Function):
    """A function by its kernels: `name`, `name`_gradient and `name`_second. given: arguments that are not tensors."""

    @staticmethod
    def forward(ctx: Any, kernels: Any, name: str, given: tuple[Any, ...], *inputs: Tensor) -> Tensor:
        ctx.all = kernels, name, given
        ctx.save_for_backward(*inputs)
        return getattr(kernels, name)(*inputs, *given)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, None, None, *_Gradient.apply(*ctx.all, *ctx.saved_tensors, gradients[0].contiguous())


class _Updated(torch.autograd.Function):
    """As `_Function` for the update, whose gradient in X is that of the result."""

    @staticmethod
    def forward(ctx: Any, kernels: Any, x: Tensor, d: Tensor, factor: Tensor | None) -> Tensor:
        ctx.kernels, ctx.factor = kernels, factor
        ctx.save_for_backward(d)
        return kernels.update(x, d, factor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        g = gradients[0].contiguous()
        return None, g, *_Gradient.apply(ctx.kernels, "update", (ctx.factor,), *ctx.saved_tensors, g), None


class _Gradient(torch.autograd.Function):
    """The derivatives of <g, function> by the inputs; g is the last argument."""

    @staticmethod
    def forward(ctx: Any, kernels: Any, name: str, given: tuple[Any, ...], *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.all = kernels, name, given
        ctx.save_for_backward(*inputs)
        found = getattr(kernels, f"{name}_gradient")(*inputs, *given)
        return found if isinstance(found, tuple) else (found,)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (kernels, name, given), (*inputs, g) = ctx.all, ctx.saved_tensors
        if torch.is_grad_enabled():
            second = second_derivatives(lambda *x: COMPOSED[name](*x, *given), inputs, (g,), gradients)
            return None, None, None, *second
        back = (x.contiguous() for x in gradients)
        return None, None, None, *getattr(kernels, f"{name}_second")(*inputs, g, *back, *given)


def atom_kernels_of(x: Tensor) -> Any:
    """The kernels for a tensor on a GPU, else None."""
    if not x.is_cuda:
        return None
    from torchmdx.engines.pairs.kernels import atom_functions as kernels

    return kernels
