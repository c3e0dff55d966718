"""SIGINT and SIGTERM as requests to stop at the next opportunity."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """A context in which SIGINT and SIGTERM only set `received`; a second signal has its original effect.

    The first one is answered by a line on stderr, since it may take a while until what is done can be kept.

    Args:
        patient: A second signal has no effect either, for processes whose launcher forwards signals that the terminal
            has already sent. Outside the main thread, where Python handles no signals, the context does nothing.
    """

    def __init__(self, patient: bool = False) -> None:
        self._patient = patient
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    @property
    def status(self) -> int:
        """The exit status by convention of shells: 128 + signal number, 0 without a signal."""
        return 0 if self.received is None else 128 + self.received

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        if not self._patient:
            self._restore()
            text = (
                f"\ntorchmdx: {self.received.name} received: saving what is done; a second signal stops immediately\n"
            )
            with contextlib.suppress(OSError):
                os.write(2, text.encode())  # print must not be called while it runs

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
