"""What a worker of a dask cluster does: it hands tasks to a process of its own, as `workers` does on one machine.

A calculator that crashes or hangs then takes down its process, not the worker of the cluster.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torchmdx.datasets.labelling.serve import Work
from torchmdx.datasets.labelling.workers import Task, Workers

IDLE = 120.0  # s without a task after which a process ends: the client may have died
LOOKING = 5.0  # s between looks for such processes


class PlacedWork(Work, Protocol):
    """Work of a dataclass, in a folder that some machines may not have."""

    @property
    def place(self) -> Path | None:
        """The folder, None for any."""


@dataclass(frozen=True)
class Order:
    """Work for all tasks of one run. timeout: s, None for never. log: file for the output of processes."""

    run: str
    work: PlacedWork
    timeout: float | None
    log: Path


class _Post:
    """The process of one thread of a worker, for one run."""

    def __init__(self, order: Order) -> None:
        self._end = threading.Event()
        self._busy = threading.Lock()
        self.last = time.monotonic()
        work, log = order.work, order.log
        if work.place is not None and not work.place.is_dir():  # on a machine without the client's files
            work = dataclasses.replace(work, place=None)  # type: ignore[type-var]
        self._workers = Workers(
            work,
            1,
            timeout=order.timeout,
            log=log if log.parent.is_dir() else Path(os.devnull),
            stopped=self._end.is_set,
        )

    def do(self, payload: Any) -> tuple[Any, str | None]:
        """Value and error of a task. Raises ValueError if the work cannot be prepared here."""
        _allow_children()
        with self._busy:
            try:
                for outcome in self._workers.run([Task(None, payload)]):
                    if outcome is not None:
                        return outcome.value, outcome.error
            finally:
                self.last = time.monotonic()
                if self._end.is_set():
                    self._workers.close()
        return None, "the run was stopped"

    def close(self) -> None:
        """Ends the process, now or after the task that is being cancelled."""
        self._end.set()
        if self._busy.acquire(blocking=False):
            try:
                self._workers.close()
            finally:
                self._busy.release()

    @property
    def is_idle(self) -> bool:
        return not self._busy.locked() and time.monotonic() - self.last > IDLE


class _Posts:
    """All posts of a worker, by run and thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._posts: dict[tuple[str, int], _Post] = {}
        self._watched = False

    def of_this_thread(self, order: Order) -> _Post:
        key = order.run, threading.get_ident()
        with self._lock:
            if key not in self._posts:
                self._posts[key] = _Post(order)
            self._posts[key].last = time.monotonic()
            if not self._watched:
                self._watched = True
                threading.Thread(target=self._watch, daemon=True).start()
            return self._posts[key]

    def close(self, run: str) -> None:
        self._close([key for key in list(self._posts) if key[0] == run])

    def _watch(self) -> None:
        while True:
            time.sleep(LOOKING)
            self._close([key for key, post in list(self._posts.items()) if post.is_idle])

    def _close(self, keys: list[tuple[str, int]]) -> None:
        with self._lock:
            closing = [self._posts.pop(key) for key in keys if key in self._posts]
        for post in closing:
            post.close()


_POSTS = _Posts()


def do_task(order: Order, payload: Any) -> tuple[Any, str | None]:
    """Runs on a worker of the cluster: the value of a task, or the reason why there is none.

    Raises:
        ValueError: If the work cannot be done on this machine.
    """
    try:
        return _POSTS.of_this_thread(order).do(payload)
    except (ValueError, ChildProcessError) as error:
        raise ValueError(f"{error} (on {socket.gethostname()})") from error


def close_posts(run: str) -> None:
    """Runs on every worker of the cluster: ends the processes of a run."""
    _POSTS.close(run)


def _allow_children() -> None:
    """Lets this process start others, which multiprocessing forbids in daemons, as workers of dask are.

    The processes started here end with it by themselves.
    """
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
