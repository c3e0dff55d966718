"""Multilinear forms as differentiable functions: derivatives of forms are forms, to any order.

Only gradients that a backward pass needs are computed. `ctx.needs_input_grad` tells which inputs require a gradient at
all, weights included. But a pass for forces needs the gradients of positions only, and the pass for weights that
follows does not need them. torch's own functions skip gradients that the pass does not need; Python functions have
to query them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

# Private; torch.autograd.graph uses it for hooks on several gradients. Without it all gradients are computed.
_executes = getattr(torch._C, "_will_engine_execute_node", None)


def inputs_with_gradient(ctx: Any, inputs: Sequence[Tensor | None], first: int = 0) -> list[bool]:
    """For each of `inputs`, whether this backward pass needs its gradient. Called in `backward` of a torch Function.

    Args:
        inputs: The arguments of `forward` from number `first` to the last; no argument before it is a tensor.
    """
    needed = ctx.needs_input_grad[first : first + len(inputs)]
    behind = ctx.next_functions  # one for each tensor among the arguments
    if _executes is None or len(behind) != sum(x is not None for x in inputs):
        return [x is not None and flag for x, flag in zip(inputs, needed, strict=True)]
    nodes = iter(behind)
    return [x is not None and _is_needed(next(nodes)[0]) for x in inputs]


def apart(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Views of tensors, of which none is computed from another.

    Derivatives by them are partial ones also where the tensors depend on each other, as a gradient that came back
    depends on the input of its function.
    """
    return tuple(x.view_as(x) for x in tensors)


def second_derivatives(
    function: Callable[..., Any],
    inputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    gradients: Sequence[Tensor],
    *,
    first: int | None = None,
    again: bool = True,
) -> tuple[Tensor | None, ...]:
    """Derivatives, by inputs and cotangents, of the gradients that came back for the first derivatives of a function.

    Args:
        cotangents: One for each value of the function.
        first: By how many of the inputs the first derivatives are; None: by all.
        again: The result can be differentiated.
    """
    with torch.enable_grad():
        by = apart(*inputs, *cotangents)
        inputs, cotangents = by[: len(inputs)], by[len(inputs) :]
        found = torch.autograd.grad(function(*inputs), inputs[:first], cotangents, create_graph=True)
        wanted = [x for x in by if x.requires_grad]
        second = iter(torch.autograd.grad(found, wanted, gradients, create_graph=again, allow_unused=True))
    return tuple(next(second) if x.requires_grad else None for x in by)


def _is_needed(node: Any) -> bool:
    if node is None:  # a constant
        return False
    assert _executes is not None
    try:
        return bool(_executes(node))
    except RuntimeError:  # raised if the input itself is what the pass differentiates by
        return True


class Form(Protocol):
    """T(...): `partial(slot, arguments)` is its derivative with respect to one argument, which is None."""

    def partial(self, slot: int, arguments: tuple[Tensor | None, ...]) -> Tensor:
        """∂T/∂(argument number `slot`), a function of the others."""
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
        needed = inputs_with_gradient(ctx, arguments, 2)
        arguments[ctx.slot] = gradients[0].contiguous()
        found: list[Tensor | None] = []
        for other, is_needed in enumerate(needed):
            if not is_needed:
                found.append(None)
                continue
            rest = [None if number == other else value for number, value in enumerate(arguments)]
            found.append(partial(ctx.form, other, *rest))
        return None, None, *found


def partial(form: Form, slot: int, *arguments: Tensor | None) -> Tensor:
    """The derivative of a form by one argument, differentiable in the others; arguments[slot] is None."""
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
        return None, partial(ctx.form, 0, None, x, 2 * gradients[0])  # the factor 2 on h, the smallest argument


def quadratic(form: Form, x: Tensor) -> Tensor:
    """The derivative of T(a, b, h) by h at a = b = x, for a form with T(a, b, h) = T(b, a, h)."""
    return _Quadratic.apply(form, x.contiguous())
