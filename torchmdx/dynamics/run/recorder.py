"""Recorder: writes frames, log rows and checkpoints during a run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from torchmdx.dynamics.log import Log, Row
from torchmdx.dynamics.run.files import Files
from torchmdx.dynamics.run.progress import ns_per_day
from torchmdx.dynamics.run.settings import Schedule
from torchmdx.dynamics.run.simulation import Checkpoint, Simulation
from torchmdx.dynamics.trajectory import Trajectory

CHECKPOINT_SECONDS = 60.0  # between checkpoints, unless --checkpoint-every is given
GOOD_SECONDS = 1.0  # between states kept in memory for a checkpoint after a failure


class Recorder:
    """Writes frames and rows at multiples of their intervals, step 0 included; checkpoints only after both."""

    def __init__(self, simulation: Simulation, files: Files, schedule: Schedule, trajectory: Trajectory, log: Log):
        self.simulation, self.files, self.schedule = simulation, files, schedule
        self.trajectory, self.log = trajectory, log
        self.row: Row | None = None
        self.good: Checkpoint | None = None
        self.saved_step: int | None = None  # of the checkpoint files
        self._row_clock: float | None = None
        self._checkpoint_clock = self._good_clock = time.monotonic()

    @classmethod
    def begin(cls, simulation: Simulation, files: Files, schedule: Schedule, settings: dict[str, Any]) -> Recorder:
        """Creates the files and writes the state at step 0 to each of them."""
        structure = simulation.structure
        periodic = structure.cell is not None
        timestep = simulation.dynamics.timestep
        simulation.measure()  # raises before any file is changed
        files.remove()
        files.write_settings(settings)
        trajectory = Trajectory.create(files.trajectory, structure.num_atoms, schedule.save_every, periodic, timestep)
        recorder = cls(simulation, files, schedule, trajectory, Log.create(files.log, simulation.log_columns))
        recorder.record()
        recorder.save_checkpoint()
        return recorder

    @classmethod
    def resume(cls, simulation: Simulation, files: Files, schedule: Schedule) -> Recorder:
        """Opens the files of an earlier run, truncated to the step of the simulation."""
        for path in (files.trajectory, files.log):
            _require_file(path)
        structure, step = simulation.structure, simulation.current_step
        periodic = structure.cell is not None
        num_frames = step // schedule.save_every + 1
        # Both are checked before either is truncated.
        log_bytes = Log.bytes_up_to(step, files.log, simulation.log_columns, schedule.log_every)
        trajectory = Trajectory.reopen(files.trajectory, structure.num_atoms, schedule.save_every, periodic, num_frames)
        recorder = cls(simulation, files, schedule, trajectory, Log.reopen(files.log, log_bytes))
        recorder._keep(simulation.checkpoint())
        recorder.saved_step = step
        return recorder

    def next_stop(self, step: int) -> int:
        """The next step at which something is written."""
        intervals = [self.schedule.save_every, self.schedule.log_every]
        if self.schedule.checkpoint_every is not None:
            intervals.append(self.schedule.checkpoint_every)
        return min((step // interval + 1) * interval for interval in intervals)

    def record(self) -> None:
        """Writes what is due at the current step. Raises SimulationError, and writes nothing, for an invalid state."""
        step = self.simulation.current_step
        logs, saves = step % self.schedule.log_every == 0, step % self.schedule.save_every == 0
        row = self.simulation.measure() if logs else None
        if saves:
            self.trajectory.write(*self.simulation.geometry())
        if row is not None:
            self._log(row)
        if self._checkpoint_due(step):
            self.save_checkpoint()
        elif time.monotonic() - self._good_clock > GOOD_SECONDS:
            self._keep(self.simulation.checkpoint())

    def save_checkpoint(self, checkpoint: Checkpoint | None = None) -> None:
        """Writes a checkpoint, by default of the current state, after earlier frames and rows are on disk."""
        self.trajectory.sync()
        self.log.sync()
        saved = self._keep(checkpoint or self.simulation.checkpoint())
        self.files.write_checkpoint(saved)
        self.saved_step = saved.step
        self._checkpoint_clock = time.monotonic()

    def close(self) -> None:
        self.trajectory.close()
        self.log.close()

    def _keep(self, checkpoint: Checkpoint) -> Checkpoint:
        self.good, self._good_clock = checkpoint, time.monotonic()
        return checkpoint

    def _checkpoint_due(self, step: int) -> bool:
        every = self.schedule.checkpoint_every
        if every is not None:
            return step > 0 and step % every == 0
        return time.monotonic() - self._checkpoint_clock > CHECKPOINT_SECONDS

    def _log(self, row: Row) -> None:
        now = time.perf_counter()
        if self._row_clock is not None:
            rate = self.schedule.log_every / max(now - self._row_clock, 1e-9)
            row = row.with_speed(ns_per_day(rate, self.simulation.dynamics.timestep))
        self._row_clock = now
        self.log.write(row)
        self.row = row


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"--restart continues {str(path)!r}, which does not exist")
