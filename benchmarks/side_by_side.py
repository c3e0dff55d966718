"""Runs the processes of a benchmark side by side, until all are done or the time is over."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SECONDS_TO_STOP = 30.0  # after the signal


class Task(NamedTuple):
    """A process: python -m module words."""

    module: str
    words: Sequence[str]
    log: Path  # is appended to
    cores: int = 1


def run(tasks: Sequence[Task], cores: int, end: float, threads: int = 1) -> None:
    """Starts tasks in their order as cores become free. end: of `time.monotonic`; then those that run are stopped."""
    began, waiting, running = time.monotonic(), list(tasks), dict[subprocess.Popen[bytes], Task]()
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    cores = max([cores, *(task.cores for task in tasks)])
    while (waiting or running) and time.monotonic() < end:
        while waiting and sum(task.cores for task in running.values()) + waiting[0].cores <= cores:
            task = waiting.pop(0)
            command = [sys.executable, "-m", task.module, *task.words]
            with task.log.open("a") as log:
                process = subprocess.Popen(
                    command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
                )
            running[process] = task
        for process in [one for one in running if one.poll() is not None]:
            name = running.pop(process).log.stem
            print(f"{time.monotonic() - began:6.0f} s  {name}: {process.returncode}", flush=True)
        time.sleep(0.2)
    for process in running:
        process.terminate()
    last = time.monotonic() + SECONDS_TO_STOP
    for process, task in running.items():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.1, last - time.monotonic()))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that it has started
        print(f"stopped {task.log.stem}", flush=True)
    print(f"{len(waiting)} not begun", flush=True)
