"""Multilinear forms as torch functions that can be differentiated any number of times.

A form T(a, b, ...) is a number, linear in each of its arguments. Its partial derivative in one argument, a "slot", is a
tensor that is linear in the others, and every derivative of that is again a partial derivative of T: in another slot,
with the incoming gradient in the place of the first. So kernels for the partial derivatives, as many as there are
slots, are all that training on forces needs, first and second backward pass included.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from torchmdx.models.wanted import wanted


class Form(Protocol):
    """T(...): `partial(slot, arguments)` is its derivative in one argument, whose own place holds None."""

    def partial(self, slot: int, arguments: tuple[Tensor | None, ...]) -> Tensor:
        """∂T/∂(argument number `slot`) at the others."""
        ...


class _Partial(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, form: Form, slot: int, *arguments: Tensor | None) -> Tensor:
        ctx.form, ctx.slot = form, slot
        ctx.save_for_backward(*arguments)
        return form.partial(slot, arguments)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        arguments = list(ctx.saved_tensors)
        asked = wanted(ctx, arguments, 2)
        arguments[ctx.slot] = gradients[0].contiguous()
        found: list[Tensor | None] = []
        for other, is_asked in enumerate(asked):
            if not is_asked:
                found.append(None)
                continue
            rest = [None if number == other else value for number, value in enumerate(arguments)]
            found.append(partial(ctx.form, other, *rest))
        return None, None, *found


def partial(form: Form, slot: int, *arguments: Tensor | None) -> Tensor:
    """The derivative of a form in one argument, differentiable in the others; arguments[slot] is None."""
    whole = [None if x is None else x.contiguous() for x in arguments]
    return _Partial.apply(form, slot, *whole)


class _Quadratic(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, form: Form, x: Tensor) -> Tensor:
        ctx.form = form
        ctx.save_for_backward(x)
        return form.partial(2, (x, x, None))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return None, partial(ctx.form, 0, None, x, 2 * gradients[0])  # h is the smallest of them


def quadratic(form: Form, x: Tensor) -> Tensor:
    """The derivative of T(a, b, h) in h at a = b = x, of a form with T(a, b, h) = T(b, a, h)."""
    return _Quadratic.apply(form, x.contiguous())
