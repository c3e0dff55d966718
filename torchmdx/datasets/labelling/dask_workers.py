"""Workers of a dask.distributed cluster, in place of processes of this machine."""

from __future__ import annotations

import contextlib
import itertools
import queue
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from torchmdx.datasets.labelling.dask_post import Order, PlacedWork, close_posts, do_task
from torchmdx.datasets.labelling.workers import MOST_ATTEMPTS, PATIENCE, Outcome, Task
from torchmdx.runtime.optional_package import require_package

if TYPE_CHECKING:
    from distributed import Client, Future

CONNECTING = 20.0  # s
COUNTING = 2.0  # s between counts of the cluster's threads
PER_THREAD = 2  # tasks that are given out: one that runs, and the next
FETCHING = 30.0  # s for a result that the cluster has announced
PARTING = 5.0  # s for workers to end what they run


class DaskWorkers:
    """Runs tasks on a cluster, one for each thread of its workers, in a process of their own there.

    Workers may come and go: a task whose worker was lost is run by another. Results are taken once. Only as many tasks
    are given out as the cluster's threads need, so that neither this process nor the scheduler fills up.

    Args:
        work: Sent with each task.
        address: Of the scheduler, such as "tcp://host:8786", or the name of a scheduler file.
        timeout: S without a message after which a task fails, None for never.
        log: File for the output of processes, where the workers have its folder.
        stopped: Called often; once it returns True, running tasks are cancelled.
        stream: For a message while the cluster has no workers.
        purpose: What the workers do, for messages.

    Raises:
        ImportError: Without dask.distributed.
        ConnectionError: If there is no scheduler.
    """

    def __init__(
        self,
        work: PlacedWork,
        address: str,
        *,
        timeout: float | None,
        log: Path,
        stopped: Callable[[], bool],
        stream: TextIO,
        purpose: str = "label",
    ) -> None:
        self._purpose = purpose
        self._address, self._stopped, self._stream = address, stopped, stream
        self._order = Order(uuid.uuid4().hex, work, timeout, log.resolve())
        self._tasks: dict[Any, Task] = {}  # given out, by key
        self._futures: dict[Any, Future] = {}
        self._done: queue.SimpleQueue[Future] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._capacity, self._counted = 0, float("-inf")
        self._client = _connect(address)

    def __enter__(self) -> DaskWorkers:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(Exception):  # of a scheduler that is gone
            self._client.cancel(list(self._futures.values()), force=True)
            self._client.run(close_posts, self._order.run, on_error="ignore", wait=True)
        with contextlib.suppress(Exception):
            self._client.close(timeout=PARTING)

    def run(self, tasks: Iterable[Task]) -> Iterator[Outcome | None]:
        """Outcomes in the order of their arrival; None from time to time while there is none.

        Raises:
            ValueError: If workers cannot do the work.
            ConnectionError: If the scheduler is lost.
        """
        source = iter(tasks)
        waiting = True
        while not self._stopped():
            while waiting and len(self._tasks) < self._room():
                task = next(source, None)
                waiting = task is not None
                if task is not None:
                    self._submit(task)
            if not waiting and not self._tasks:
                return
            yield self._next(PATIENCE)
        while (outcome := self._next(0.0)) is not None:  # tasks that finished before the stop
            yield outcome

    def _room(self) -> int:
        """How many tasks may be given out."""
        now = time.monotonic()
        if now - self._counted > COUNTING:
            with self._naming_loss():
                self._capacity = PER_THREAD * sum(self._client.nthreads().values())
            if not self._capacity and self._counted < 0:
                print(f"torchmdx: {self._address} has no workers yet; waiting for them", file=self._stream)
            self._counted = now
        return self._capacity

    def _submit(self, task: Task) -> None:
        key = f"torchmdx-{self._purpose}-{self._order.run}-{next(self._numbers)}"
        with self._naming_loss():
            future = self._client.submit(do_task, self._order, task.payload, key=key, pure=False)
        self._tasks[key], self._futures[key] = task, future
        future.add_done_callback(self._done.put)

    def _next(self, pause: float) -> Outcome | None:
        """The next outcome, None if there is none in time."""
        try:
            future = self._done.get(timeout=pause) if pause else self._done.get_nowait()
        except queue.Empty:
            self._require_scheduler()
            return None
        if future.key not in self._tasks:  # announced twice: its result was lost with its worker, and computed again
            return None
        try:
            answer, error = future.result(timeout=FETCHING) if future.status == "finished" else None, None
        except Exception as reason:  # whatever a lost worker causes
            answer, error = None, reason
        if answer is not None:
            return self._outcome(future, *answer)
        if future.status == "error":
            return self._failure(future)
        self._require_scheduler()
        if future.status == "cancelled":
            raise ConnectionError(f"the scheduler at {self._address} cancelled a task: {error}")
        future.add_done_callback(self._done.put)  # lost with its worker: it is computed again
        return None

    def _outcome(self, future: Future, value: Any, error: str | None) -> Outcome:
        task = self._forget(future)
        return Outcome(task.name, task.payload, value, error)

    def _failure(self, future: Future) -> Outcome | None:
        """Handles a task that the cluster gave up, or that its workers cannot do."""
        from distributed.scheduler import KilledWorker

        error = future.exception()
        task = self._forget(future)
        if not isinstance(error, KilledWorker):
            raise ValueError(
                f"workers of {self._address} must be able to {self._purpose}, got {type(error).__name__}: {error}"
            ) from error
        task.attempts += 1
        if task.attempts < MOST_ATTEMPTS:
            self._submit(task)
            return None
        return Outcome(task.name, task.payload, None, "dask workers died while they had it: given up twice")

    def _forget(self, future: Future) -> Task:
        del self._futures[future.key]
        return self._tasks.pop(future.key)

    @contextlib.contextmanager
    def _naming_loss(self) -> Iterator[None]:
        """Turns errors of a lost scheduler into ConnectionError."""
        try:
            yield
        except Exception:
            self._require_scheduler()
            raise

    def _require_scheduler(self) -> None:
        if self._client.status not in ("running", "connecting"):
            raise ConnectionError(f"the scheduler at {self._address} is gone ({self._client.status})")


def require_dask() -> None:
    """Raises ImportError without dask.distributed."""
    require_package("distributed", "--dask needs", "dask", "dask.distributed")


def _connect(address: str) -> Client:
    require_dask()
    from distributed import Client

    is_file = Path(address).is_file()
    if not is_file and "://" not in address:
        raise ValueError(f"--dask must be an address such as tcp://host:8786 or a scheduler file, got {address!r}")
    where = {"scheduler_file": address} if is_file else {"address": address}
    try:
        return Client(**where, timeout=CONNECTING, set_as_default=False, name="torchmdx-label")
    except (OSError, TimeoutError) as error:
        raise ConnectionError(f"--dask must be a running scheduler, got {address!r}: {error}") from error
