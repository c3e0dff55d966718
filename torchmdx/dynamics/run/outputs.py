"""Trajectories and logs of a run with either engine: one of each for every structure, and when what is due."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from torchmdx.dynamics.log import Log, LogRow
from torchmdx.dynamics.run.files import RunFiles
from torchmdx.dynamics.run.progress import ns_per_day
from torchmdx.dynamics.trajectory import TrajectoryFrame
from torchmdx.dynamics.trajectory_formats import TrajectoryFile, TrajectoryFormat

CHECKPOINT_SECONDS = 60.0  # between checkpoints, unless a number of steps is given
MOST_TEMPERATURE = 1e5  # K; at this temperature atoms have flown apart, even if all values are finite


def is_unstable(temperature: Any, target: Any) -> Any:
    """Whether atoms have flown apart: temperatures, also arrays, at those of the thermostat, K; also if NaN."""
    return ~(np.asarray(temperature) <= np.maximum(MOST_TEMPERATURE, 10 * target))


@dataclass(frozen=True)
class OutputSchedule:
    """Steps between frames, log rows and checkpoints; checkpoint_every None: by wall-clock time. Raises ValueError."""

    save_every: int = 100
    log_every: int = 100
    checkpoint_every: int | None = None

    def __post_init__(self) -> None:
        for name in ("save_every", "log_every", "checkpoint_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be >= 1 step, got {value}")

    @property
    def intervals(self) -> list[int]:
        further = [] if self.checkpoint_every is None else [self.checkpoint_every]
        return [self.save_every, self.log_every, *further]

    def next_stop(self, step: int) -> int:
        """The next step at which something is written."""
        return min((step // interval + 1) * interval for interval in self.intervals)


@dataclass(frozen=True)
class Shape:
    """What the files of one structure hold: its number of atoms, whether frames have a cell, columns of the log."""

    num_atoms: int
    celled: bool
    columns: tuple[str, ...]


class RunOutputs:
    """Trajectories and logs of a run, once they are open. Entries are at multiples of their intervals, step 0 included.

    Args:
        kind: Of trajectories.
        timestep: fs.

    Attributes:
        rows: The newest of each structure.
    """

    def __init__(self, files: RunFiles, schedule: OutputSchedule, timestep: float, kind: TrajectoryFormat) -> None:
        self.files, self.schedule, self._timestep, self._kind = files, schedule, timestep, kind
        self.trajectories: list[TrajectoryFile] = []
        self.logs: list[Log] = []
        self.rows: list[LogRow] = []
        self._row_clock: float | None = None
        self._checkpoint_clock = time.monotonic()

    def create(self, shapes: Sequence[Shape], topologies: Sequence[str]) -> None:
        """Opens new files, without frames and rows. topologies: of `topology_of`."""
        with closing_after_errors(self):
            for number, (shape, topology) in enumerate(zip(shapes, topologies, strict=True)):
                given = (shape.num_atoms, self.schedule.save_every, shape.celled, self._timestep, topology)
                self.trajectories.append(self._kind.create(self.files.trajectories[number], *given))
                self.logs.append(Log.create(self.files.logs[number], shape.columns))

    def reopen(self, shapes: Sequence[Shape], step: int) -> None:
        """Opens the files of an earlier run, cut to a step. Raises ValueError for others, before any log is cut."""
        save_every, log_every = self.schedule.save_every, self.schedule.log_every
        paths = self.files.logs
        num_bytes = [
            Log.bytes_up_to(step, path, shape.columns, log_every) for path, shape in zip(paths, shapes, strict=True)
        ]
        with closing_after_errors(self):
            for number, shape in enumerate(shapes):
                given = (shape.num_atoms, save_every, shape.celled, step // save_every + 1)
                self.trajectories.append(self._kind.reopen(self.files.trajectories[number], *given))
                self.logs.append(Log.reopen(paths[number], num_bytes[number]))

    def record(self, step: int, frames: Callable[[], list[TrajectoryFrame]], rows: Callable[[], list[LogRow]]) -> None:
        """Writes what is due and not written: an interruption may end a run where it began, or a write may fail.

        Args:
            frames, rows: Make those of all structures; both are made before either is written.
        """
        saves = lacking(step, self.schedule.save_every, [file.num_frames for file in self.trajectories])
        logs = lacking(step, self.schedule.log_every, [log.num_rows for log in self.logs])
        new_rows, new_frames = rows() if logs else [], frames() if saves else []
        for number in saves:
            self.trajectories[number].append(new_frames[number])
        if logs:
            speed = self._speed()
            self.rows = new_rows if speed is None else [row.with_speed(speed) for row in new_rows]
            for number in logs:
                self.logs[number].write(self.rows[number])

    @property
    def row(self) -> LogRow | None:
        """The newest of the first structure."""
        return self.rows[0] if self.rows else None

    def checkpoint_due(self, step: int) -> bool:
        every = self.schedule.checkpoint_every
        if every is not None:
            return step > 0 and step % every == 0
        return time.monotonic() - self._checkpoint_clock > CHECKPOINT_SECONDS

    def sync(self) -> None:
        """Waits until all frames and rows are on disk, as checkpoints require, which are counted from here."""
        for trajectory, log in zip(self.trajectories, self.logs, strict=True):
            trajectory.sync()
            log.sync()
        self._checkpoint_clock = time.monotonic()

    def close(self) -> None:
        with contextlib.ExitStack() as files:  # closes all, even if one fails
            for close in (file.close for kind in (self.trajectories, self.logs) for file in kind):
                files.callback(close)

    def _speed(self) -> float | None:
        """ns/day since the last row."""
        now, before = time.perf_counter(), self._row_clock
        self._row_clock = now
        return None if before is None else ns_per_day(self.schedule.log_every / max(now - before, 1e-9), self._timestep)


class _Closable(Protocol):
    def close(self) -> None: ...


@contextlib.contextmanager
def closing_after_errors(opened: _Closable) -> Iterator[None]:
    """Closes what is half open if the block fails. The first error is the one to show."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            opened.close()
        raise


def lacking(step: int, every: int, written: list[int]) -> list[int]:
    """The structures whose file lacks the entry of a step. written: entries in each file, of the steps 0, every, ...

    Raises:
        ValueError: If a file lacks an earlier one.
    """
    if min(written) < step // every + (step % every > 0):
        raise ValueError(
            f"step {min(written) * every} is not recorded, but the dynamics is at step {step}: during "
            "a Recording, only Recording.run may advance it"
        )
    return [number for number, count in enumerate(written) if step % every == 0 and count == step // every]
