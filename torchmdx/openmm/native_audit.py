"""Audits of the native transport: results are compared with the exact model while OpenMM continues."""

from __future__ import annotations

import contextlib
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchmdx.runtime.isolation import isolated
from torchmdx.runtime.own_streams import own_stream
from torchmdx.step.audit import judge, structure_of
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.results import AuditError
from torchmdx.structures.system import Batch

log = logging.getLogger(__name__)


AUDIT = -1  # number of the stream for audits


class BackgroundAudit:
    """Audits evaluations of a step in a thread of its own, and on a GPU on a stream of its own.

    `start` copies the results in the step's buffers, which the next evaluation overwrites, and returns. At most one
    audit runs at a time: the next one waits for it. `failed` is 1 after a failed audit, until `settle` raises it.
    """

    def __init__(self, step: CapturedStep, every: int) -> None:
        self.every = every
        self.failed = np.zeros(1, np.int64)
        self._step = step
        self._stream = own_stream(step.device, AUDIT) if step.device.type == "cuda" else None
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="torchmdx-audit")
        self._pending: Future[str | None] | None = None

    def start(self, evaluation: int, step: int) -> None:
        """Starts an audit of the results in the buffers. step: of the Context. Raises as `settle`."""
        self.settle()
        with self._aside():
            structure = structure_of(self._step.batch, self._step.buffers, "device")
            outputs = self._step.buffers.copied_outputs()
            if self._stream is not None:
                self._stream.synchronize()
        title = f"the audit of evaluation {evaluation}, at step {step}"
        self._pending = self._worker.submit(self._compare, title, evaluation, structure, outputs)

    def settle(self) -> None:
        """Waits for the current audit, if any. Raises AuditError if it failed."""
        pending = self._pending
        reason = None if pending is None else pending.result()
        self._pending = None
        self.failed[0] = 0
        if reason is not None:
            raise AuditError(reason)

    def close(self) -> None:
        """Waits for the current audit; a failure is in the log even if no later evaluation raises it."""
        self._worker.shutdown(wait=True)

    @isolated
    def _compare(self, title: str, evaluation: int, structure: Batch, outputs: dict[str, Tensor]) -> str | None:
        try:
            with self._aside():
                verdict = judge(self._step.potential, structure, outputs, self._step.precision, evaluation)
            self._step.verdict, reason = verdict, verdict.reason
        except Exception as error:
            reason = f"it could not be done: {error}"
        if reason is None:
            return None
        reason = f"{title}: {reason}"
        log.error("%s", reason)
        self.failed[0] = 1
        return reason

    def _aside(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
