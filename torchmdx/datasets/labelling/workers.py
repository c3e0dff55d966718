"""Worker processes, which are replaced when they crash or hang."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any

from torchmdx.datasets.labelling.serve import Work, serve

PATIENCE = 0.2  # s between checks of whether to stop
FAREWELL = 2.0  # s for an idle worker to exit by itself
MOST_ATTEMPTS = 2  # a task whose worker died is retried: another process may have used up the memory
MOST_FALSE_STARTS = 3  # workers in a row that die before they are ready
LIBRARIES = ("OMP", "MKL", "OPENBLAS", "NUMEXPR")
ONE_THREAD = {**{f"{library}_NUM_THREADS": "1" for library in LIBRARIES}, "VECLIB_MAXIMUM_THREADS": "1"}

_environment = threading.Lock()  # of threads that start workers


@dataclass(eq=False)
class Task:
    """A task: `payload` is sent to a worker, `name` is returned with the outcome."""

    name: Any
    payload: Any
    attempts: int = 0


@dataclass(frozen=True)
class Outcome:
    """The result of a task: a value, or the reason why there is none."""

    name: Any
    payload: Any
    value: Any
    error: str | None


@dataclass(eq=False)
class _Worker:
    number: int
    process: Any
    connection: Any
    ready: bool = False
    task: Task | None = None
    deadline: float = field(default=float("inf"))


class Workers:
    """Runs tasks on worker processes of one thread each, which end with the `with` block.

    Args:
        work: Sent to each worker once.
        timeout: S without a message after which a task fails, None for never.
        log: File for the output of workers.
        stopped: Called often; once it returns True, running tasks are cancelled.
    """

    def __init__(
        self, work: Work, num_workers: int, *, timeout: float | None, log: Path, stopped: Callable[[], bool]
    ) -> None:
        self._work, self._num_workers, self._log, self._stopped = work, num_workers, log, stopped
        self._timeout = float("inf") if timeout is None else timeout
        self._workers: list[_Worker] = []
        self._false_starts = 0

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all workers."""
        if not any(worker.task for worker in self._workers):
            self._dismiss()
        for worker in list(self._workers):
            self._remove(worker)

    def run(self, tasks: Iterable[Task]) -> Iterator[Outcome | None]:
        """Outcomes in the order of their arrival; None from time to time while there is none.

        Raises:
            ValueError: If the work cannot be prepared.
            ChildProcessError: If workers die before they are ready.
        """
        source, waiting = iter(tasks), deque[Task]()
        while not self._stopped():
            waiting.extend(itertools.islice(source, max(0, self._num_workers - len(waiting))))
            if not waiting and not any(worker.task for worker in self._workers):
                return
            self._employ(waiting)
            yield from self._collect(waiting)
        yield from self._collect(waiting, pause=0.0)  # tasks that finished before the stop

    def _employ(self, waiting: deque[Task]) -> None:
        """Gives tasks to idle workers, and starts workers for the remaining tasks."""
        for worker in list(self._workers):
            if waiting and worker.ready and worker.task is None:
                task = waiting.popleft()
                try:
                    worker.connection.send(task.payload)
                except OSError:  # the worker died while idle
                    waiting.appendleft(task)
                    self._remove(worker)
                    continue
                worker.task, worker.deadline = task, time.monotonic() + self._timeout
        starting = sum(not worker.ready for worker in self._workers)
        for _ in range(min(len(waiting) - starting, self._num_workers - len(self._workers))):
            self._workers.append(_start(self._work, self._free_number(), self._log))

    def _free_number(self) -> int:
        taken = {worker.number for worker in self._workers}
        return next(number for number in itertools.count() if number not in taken)

    def _collect(self, waiting: deque[Task], pause: float = PATIENCE) -> Iterator[Outcome | None]:
        """Waits for messages, deaths and deadlines, and handles them."""
        things = [thing for worker in self._workers for thing in (worker.connection, worker.process.sentinel)]
        soonest = min((worker.deadline for worker in self._workers), default=float("inf")) - time.monotonic()
        happened = set(connection.wait(things, max(0.0, min(pause, soonest)))) if things else set()
        if not happened:
            yield None
        for worker in list(self._workers):
            if worker.connection in happened:
                yield from self._hear(worker, waiting)
            elif worker.process.sentinel in happened:
                yield from self._bury(worker, waiting)
            elif worker.task is not None and time.monotonic() > worker.deadline:
                self._remove(worker)
                yield _failed(worker.task, f"no result within {self._timeout:g} s")

    def _hear(self, worker: _Worker, waiting: deque[Task]) -> Iterator[Outcome]:
        try:
            kind, value = worker.connection.recv()
        except (EOFError, OSError):
            yield from self._bury(worker, waiting)
            return
        worker.deadline = time.monotonic() + self._timeout if worker.task is not None else float("inf")
        if kind == "ready":
            worker.ready, self._false_starts = True, 0
        elif kind == "broken":
            raise ValueError(value)
        elif kind in ("done", "failed") and worker.task is not None:
            task, worker.task, worker.deadline = worker.task, None, float("inf")
            yield Outcome(task.name, task.payload, value, None) if kind == "done" else _failed(task, value)

    def _bury(self, worker: _Worker, waiting: deque[Task]) -> Iterator[Outcome]:
        """Handles the death of a worker: its task is retried, or fails."""
        self._remove(worker)
        how, task = worker.process.exitcode, worker.task
        if not worker.ready:
            self._false_starts += 1
            if self._false_starts >= MOST_FALSE_STARTS:
                where = (
                    f"see {str(self._log)!r}"
                    if self._log.exists() and self._log.stat().st_size
                    else "see what they printed"
                )
                raise ChildProcessError(f"workers die before they are ready ({_death(how)}); {where}")
        if task is None:
            return
        task.attempts += 1
        if task.attempts < MOST_ATTEMPTS:
            waiting.appendleft(task)
        else:
            yield _failed(task, f"the worker died ({_death(how)}), {MOST_ATTEMPTS} times")

    def _remove(self, worker: _Worker) -> None:
        """Kills a worker and its child processes."""
        if worker in self._workers:
            self._workers.remove(worker)
        # Every worker leads its own process group. Its process id is not reused before it is reaped.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.process.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            worker.process.kill()
        worker.process.join()
        worker.connection.close()

    def _dismiss(self) -> None:
        """Asks workers to exit, and waits up to FAREWELL."""
        for worker in self._workers:
            with contextlib.suppress(OSError):
                worker.connection.send(None)
        until = time.monotonic() + FAREWELL
        for worker in self._workers:
            connection.wait([worker.process.sentinel], max(0.0, until - time.monotonic()))


def usable_cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not available on every system
        return os.cpu_count() or 1


def _start(work: Work, number: int, log: Path) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(work, number, theirs, str(log)), daemon=True)
    with _environment:
        _start_with_one_thread(process)
    theirs.close()
    return _Worker(number, process, ours)


def _start_with_one_thread(process: Any) -> None:
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    # Ctrl-C is sent to all processes of a terminal. It must not reach the worker, even while Python starts there.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _failed(task: Task, reason: str) -> Outcome:
    return Outcome(task.name, task.payload, None, reason)


def _death(exitcode: int | None) -> str:
    if exitcode is None or exitcode >= 0:
        return f"exit status {exitcode}"
    try:
        return signal.Signals(-exitcode).name
    except ValueError:
        return f"signal {-exitcode}"
