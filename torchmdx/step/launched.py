"""Evaluations of a captured step that are queued now and looked at later: replays of its graph, and nothing else.

One thread can then queue those of several devices, and wait once. Whatever else an evaluation may need, a call of the
step does: captures, audits, another order of the atoms, a longer neighbour list.
"""

from __future__ import annotations

from typing import Any

from torchmdx.step.buffer_storage import FAR, NOT_FINITE, OVERFLOW, UNCERTAIN
from torchmdx.step.buffers import copy_checked
from torchmdx.step.captured_step import REFRESH_EVERY, CapturedStep


def may_launch(step: CapturedStep | None) -> bool:
    """Whether the next evaluation of positions on the device is a replay alone."""
    if step is None or step.unsettled or step.assigning or step.audit_owed or "device" not in step.policy.graphs:
        return False
    number = step.num_evaluations + 1
    return number % REFRESH_EVERY != 0 and not (step.audit_every and number % step.audit_every == 0)


def launch(step: CapturedStep, cell: Any) -> None:
    """Queues an evaluation at the positions in `buffers.inputs` and a cell [3,3] Å, on the current stream."""
    copy_checked("cell", step.buffers.inputs["cell"], cell)
    step._last_kind = "device"
    step.num_evaluations += 1
    step.policy.graphs["device"].replay()


def landed(step: CapturedStep) -> bool:
    """After the wait: whether results are those of `buffers.outputs`. If not, a call of the step finds them."""
    flags = step.buffers.host_arrays["flags"]
    return not flags[[OVERFLOW, NOT_FINITE, FAR, UNCERTAIN]].any()
