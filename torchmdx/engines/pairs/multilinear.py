"""Which gradients a backward pass asks for: not every one that could be had.

`ctx.needs_input_grad` says which inputs require a gradient at all, the weights among them. A pass for forces asks for
positions alone, and the pass for the weights afterwards not for positions: torch's own functions leave out what such a
pass does not need, and functions written in Python have to ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

# Private, though torch's own hooks on several gradients (torch.autograd.graph) ask it. Without it all are computed.
_executes = getattr(torch._C, "_will_engine_execute_node", None)


def wanted(ctx: Any, inputs: Sequence[Tensor | None], first: int = 0) -> list[bool]:
    """For each of `inputs`, whether this backward pass goes on behind it. Called in `backward` of a torch Function.

    inputs: what `forward` got from its argument number `first` on, to the last; before it, no argument is a tensor.
    """
    needed = ctx.needs_input_grad[first : first + len(inputs)]
    behind = ctx.next_functions  # one for each tensor among the arguments
    if _executes is None or len(behind) != sum(x is not None for x in inputs):
        return [x is not None and flag for x, flag in zip(inputs, needed, strict=True)]
    nodes = iter(behind)
    return [x is not None and _goes_on(next(nodes)[0]) for x in inputs]


def _goes_on(node: Any) -> bool:
    if node is None:  # a constant
        return False
    assert _executes is not None
    try:
        return bool(_executes(node))
    except RuntimeError:  # how it says that the input is itself what the pass is for
        return True


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
