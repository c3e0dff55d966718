"""Incomplete batches of i-PI's `ffdirect`: evaluated as soon as the simulation waits for one of their structures.

i-PI collects the structures of a step until there are `batch_size` of them. Without `threaded`, it then waits forever
for the last ones if their number is not a multiple of `batch_size`.
"""

from __future__ import annotations

import functools
import threading
from typing import Any


class _Awaited(threading.Event):
    """Set when a request has been evaluated; waiting for it first launches the batch that it is in."""

    def __init__(self, forcefield: Any) -> None:
        super().__init__()
        self._forcefield = forcefield

    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_set():
            with self._forcefield._threadlock:
                if not self.is_set() and self._forcefield.request_batch:
                    self._forcefield.launch_batch()
        return super().wait(timeout)


def launch_when_awaited(driver_class: type) -> None:
    """Makes every `ffdirect` with a driver of this class launch incomplete batches; call it before i-PI starts."""
    from ipi.engine.forcefields import FFDirect

    original = FFDirect.start
    if driver_class in getattr(original, "drivers", ()):
        return

    @functools.wraps(original)
    def start(self: Any) -> None:
        if isinstance(self.driver, driver_class) and self.batch_size > 1 and not self.threaded:
            self.evaluate = functools.partial(_evaluate, self, self.evaluate)
        original(self)

    start.drivers = (driver_class, *getattr(original, "drivers", ()))  # type: ignore[attr-defined]
    FFDirect.start = start


def _evaluate(forcefield: Any, queue: Any, request: Any) -> None:
    request._event_done = _Awaited(forcefield)
    queue(request)
