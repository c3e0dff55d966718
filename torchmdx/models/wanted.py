"""Which gradients a backward pass asks for: not every one that could be had.

`ctx.needs_input_grad` says which inputs require a gradient at all, the weights among them. A pass for forces asks for
positions alone, and the pass for the weights afterwards not for positions: torch's own functions leave out what such a
pass does not need, and functions written in Python have to ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
