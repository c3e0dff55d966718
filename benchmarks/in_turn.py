"""Processes of a benchmark that set up side by side and are timed one after the other.

A set-up compiles kernels, which takes several times as long as a measurement, and may share the GPU with others; a
measurement may not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

READY = "BENCHMARK_READY"  # the file that a process makes when it is set up
POLL = 0.05  # s
LATE = "did not end"


def my_turn() -> None:
    """Says that this process is set up, and returns when it is the only one that measures."""
    path = os.environ.get(READY)
    if path is not None and not Path(path).exists():
        Path(path).touch()
        if not sys.stdin.readline():
            sys.exit("the process that started this one has ended")


@dataclass(frozen=True)
class Ended:
    """What a process printed, and why it ended early; `why` is empty if it did not."""

    output: str
    errors: str
    why: str


def rows(ended: Ended) -> list[dict[str, Any]]:
    """Rows that a process printed, each a line of JSON."""
    return [json.loads(line) for line in ended.output.splitlines() if line.startswith("{")]


class _Started:
    """A process, with its output in files of `folder`."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        folder.mkdir()
        self.ready, self.output, self.errors = (folder / name for name in ("ready", "output", "errors"))
        environment = os.environ | {READY: str(self.ready)}
        with self.output.open("w") as output, self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=errors, env=environment
            )

    def waits(self) -> bool:
        """Whether it is set up, or has ended."""
        return self.ready.exists() or self.process.poll() is not None

    def measured(self, seconds: float) -> Ended:
        """Lets it measure; it is killed if it does not end within `seconds`, or has not been set up."""
        late = not self.waits()
        if not late:
            try:
                self.process.communicate(b"\n", timeout=seconds)
            except subprocess.TimeoutExpired:
                late = True
        self.kill()
        code = self.process.returncode
        why = f"{LATE} in {seconds:g} s" if late else f"exit status {code}" if code else ""
        return Ended(self.output.read_text(), self.errors.read_text(), why)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()


def run(commands: Sequence[Sequence[str]], seconds: float, at_once: int | None = None) -> Iterator[Ended]:
    """Runs commands that call my_turn(), and yields what became of each, in their order.

    Args:
        seconds: The limit of each set-up, and of each measurement.
        at_once: How many are set up side by side; default: one for two of the processors that this process may use.
    """
    together = at_once or max(1, len(os.sched_getaffinity(0)) // 2)
    for first in range(0, len(commands), together):
        with tempfile.TemporaryDirectory() as folder:
            group = enumerate(commands[first : first + together])
            started = [_Started(command, Path(folder) / str(k)) for k, command in group]
            try:
                end = time.monotonic() + seconds
                while time.monotonic() < end and not all(one.waits() for one in started):
                    time.sleep(POLL)
                for one in started:
                    yield one.measured(seconds)
            finally:
                for one in started:
                    one.kill()
