"""The loop of a worker process."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import connection, parent_process
from typing import Any, Protocol

PULSE = 0.5  # s between messages that a task is still running

Pulse = Callable[[], None]


class Work(Protocol):
    """What a worker does. It is pickled, so it is a small object of a module that workers can import."""

    def prepare(self, number: int) -> Callable[[Any, Pulse], Any]:
        """Runs in the worker, before the first task and after a failure: makes the function that does a task.

        Args:
            number: Of the worker. No two workers that run at the same time have the same.
        """


def serve(work: Work, number: int, link: Any, log: str) -> None:
    """Takes tasks from a connection and sends their results, until it is told to end or the parent has exited."""
    _settle(log)
    try:
        do = work.prepare(number)
    except Exception as error:
        link.send(("broken", str(error) or type(error).__name__))
        return
    link.send(("ready", None))
    heart = _Heart(link)
    while True:
        try:
            payload = link.recv()
        except (EOFError, OSError):
            return
        if payload is None:
            return
        try:
            answer = ("done", do(payload, heart.beat))
        except (Exception, SystemExit) as error:
            answer = ("failed", one_line(error))
            try:
                do = work.prepare(number)  # the calculator may be in an invalid state
            except Exception:
                link.send(answer)
                return  # the parent starts another worker
        link.send(answer)


class _Heart:
    """Tells the parent every PULSE seconds that a long task is still running."""

    def __init__(self, link: Any) -> None:
        self._link, self._last = link, time.monotonic()

    def beat(self) -> None:
        now = time.monotonic()
        if now - self._last > PULSE:
            self._last = now
            self._link.send(("alive", None))


def _settle(log: str) -> None:
    """Starts a process group, ignores Ctrl-C, redirects output to a file, and exits when the parent does."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    sys.stdout.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    faulthandler.enable()
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os.killpg(0, signal.SIGKILL)


def one_line(error: BaseException) -> str:
    """An error as the reason of a failure: its name, text and notes."""
    text = " ".join(str(error).split())
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return (f"{type(error).__name__}: {text}" if text else type(error).__name__) + notes
