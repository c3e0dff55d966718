"""Recording: a run with a trajectory and a log for each structure, and a file to continue from."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from torchmdx.dynamics.dynamics import Dynamics
from torchmdx.dynamics.log import Log, Row, columns_of
from torchmdx.dynamics.orientation import tell_of_cells
from torchmdx.dynamics.recorded import atoms_of, frames_of, lacking, rows_of
from torchmdx.dynamics.run_files import RunFiles, files_of
from torchmdx.dynamics.run_settings import CELLS, settings_of
from torchmdx.dynamics.snapshot import Snapshot
from torchmdx.dynamics.trajectory_formats import AtomNames, TrajectoryFile, TrajectoryFormat, topology_of
from torchmdx.runtime.output_lock import OutputLock
from torchmdx.step.results import SpreadError, StepError
from torchmdx.structures.units import PICOSECOND

CHECKPOINT_SECONDS = 60.0  # between restart files, unless a number of steps is given
MOST_TEMPERATURE = 1e5  # K; at this temperature atoms have flown apart, even if all values are finite
SECONDS_A_DAY = 86400.0
DCD = TrajectoryFormat("dcd")


class Unstable(StepError):
    """The atoms of a run have flown apart; names the step and the structure."""


class Recording:
    """Writes frames and log rows of a run at multiples of their intervals, step 0 included, without waiting for it.

        dynamics = Dynamics(potential, System.from_ase(atoms), timestep=0.5)
        with Recording.begin(dynamics, "run", save_every=10, log_every=10) as recording:
            recording.run(100)

    For each structure a trajectory and a CSV log: PREFIX.dcd and PREFIX.log, or PREFIX.0.dcd and so on for several;
    `TrajectoryFormat("hdf5")` makes it PREFIX.h5, with energies and, optionally, velocities.
    PREFIX.restart.npz, replaced atomically once a minute and at the end, is what `resume` continues from, to the bit.
    A run that is killed loses at most the time since then. saved_step: of the restart file. Where an ensemble disagrees
    too much, the frame is appended to PREFIX.uncertain.xyz of its structure. One process at a time may record to a
    prefix; the others get a BlockingIOError.

    Both formats hold lengths and angles of cells. Frames are therefore rotated to a along x and b in the xy plane, of
    which `begin` and `resume` warn; HDF5 files also have `cell_vectors`, the cell as it is. Cells of slabs and wires
    get vectors along all directions, long enough that images along directions without periodicity are far away.
    """

    def __init__(
        self,
        dynamics: Dynamics,
        files: RunFiles,
        save_every: int,
        log_every: int,
        checkpoint_every: int | None,
        trajectory: TrajectoryFormat,
        lock: OutputLock | None = None,
    ) -> None:
        self.dynamics, self.files, self.format, self._lock = dynamics, files, trajectory, lock
        self.save_every, self.log_every, self.checkpoint_every = save_every, log_every, checkpoint_every
        self.trajectories: list[TrajectoryFile] = []
        self.logs: list[Log] = []
        self.rows: list[Row] = []
        self.saved_step: int | None = None
        self._row_clock: float | None = None
        self._checkpoint_clock = time.monotonic()
        self._pbc = np.asarray(dynamics.batch.pbc)
        self._periodic: list[bool] = dynamics.batch.pbc.all(1).tolist()
        self._restrained = dynamics.motion.restraints is not None

    @classmethod
    def begin(
        cls,
        dynamics: Dynamics,
        prefix: str,
        *,
        save_every: int = 100,
        log_every: int = 100,
        checkpoint_every: int | None = None,
        overwrite: bool = False,
        settings: dict[str, Any] | None = None,
        trajectory: TrajectoryFormat = DCD,
        names: AtomNames | None = None,
        lock: OutputLock | None = None,
    ) -> Recording:
        """Creates the files, with the current state. settings: further ones that a continuation must share.

        names: of the atoms of each structure, if all have the same, for the topology in HDF5 files. lock: of the
        prefix, if the caller holds it. Raises FileExistsError for files of an earlier run, unless `overwrite`; OSError,
        also if another process records to this prefix.
        """
        files = files_of(dynamics.batch.num_systems, prefix, save_every, log_every, checkpoint_every, trajectory.ending)
        if dynamics.num_steps:
            raise ValueError(f"a recording begins at step 0, got step {dynamics.num_steps}; resume continues one")
        own = OutputLock(prefix) if lock is None else None
        recording = cls(dynamics, files, save_every, log_every, checkpoint_every, trajectory, own)
        with recording._closing_after_errors():
            if not overwrite:
                files.require_new()
            start = dynamics.snapshot()
            files.remove()
            files.write_settings(recording._settings(settings))
            timestep = dynamics.motion.timestep
            numbers = dynamics.batch.atomic_numbers.numpy()
            for number, (path, count, celled) in enumerate(recording._frames()):
                topology = topology_of(numbers[atoms_of(dynamics.motion.particles)[number]], names)
                recording.trajectories.append(trajectory.create(path, count, save_every, celled, timestep, topology))
                recording.logs.append(Log.create(files.logs[number], recording._columns(number)))
            recording._record(start)
            recording.save(start)
            tell_of_cells(dynamics.batch.cell.numpy(), recording._pbc, trajectory.name)
        return recording

    @classmethod
    def resume(
        cls,
        dynamics: Dynamics,
        prefix: str,
        *,
        save_every: int = 100,
        log_every: int = 100,
        checkpoint_every: int | None = None,
        settings: dict[str, Any] | None = None,
        trajectory: TrajectoryFormat = DCD,
        lock: OutputLock | None = None,
    ) -> Recording:
        """Continues a recorded run from its restart file; later frames and rows are removed.

        dynamics: made as that of `begin`, with the same potential, structures and settings. Raises FileNotFoundError
        without the files; ValueError for other settings and damaged files, before any is changed; OSError.
        """
        files = files_of(dynamics.batch.num_systems, prefix, save_every, log_every, checkpoint_every, trajectory.ending)
        own = OutputLock(prefix) if lock is None else None
        recording = cls(dynamics, files, save_every, log_every, checkpoint_every, trajectory, own)
        with recording._closing_after_errors():
            not_written = files.require_settings(recording._settings(settings))
            for path in (files.restart, *files.trajectories, *files.logs):
                if not path.is_file():
                    raise FileNotFoundError(f"a restart continues {str(path)!r}, which does not exist")
            dynamics.restore(files.restart)
            step = dynamics.num_steps
            log_bytes = [
                Log.bytes_up_to(step, path, recording._columns(number), log_every)
                for number, path in enumerate(files.logs)
            ]
            for number, (path, count, celled) in enumerate(recording._frames()):
                num_frames = step // save_every + 1
                recording.trajectories.append(trajectory.reopen(path, count, save_every, celled, num_frames))
                recording.logs.append(Log.reopen(files.logs[number], log_bytes[number]))
            recording.saved_step = step
            tell_of_cells(dynamics.batch.cell.numpy(), recording._pbc, trajectory.name, CELLS in not_written)
        return recording

    def run(
        self,
        num_steps: int,
        *,
        interrupted: Callable[[], bool] = lambda: False,
        progress: Callable[[int, Row | None], None] = lambda step, row: None,
    ) -> int:
        """Takes this many steps, fewer if `interrupted` says so; returns the step reached, which is saved.

        After a failure the last valid state is saved, and the error is raised; a SpreadError names the file that its
        frame was appended to. progress: called with the step and the
        newest row of the first structure.
        """
        intervals = [self.save_every, self.log_every]
        if self.checkpoint_every is not None:
            intervals.append(self.checkpoint_every)
        last = self.dynamics.snapshot()
        try:
            self._record(last)  # what an earlier call could not write
            for found in self.dynamics.snapshots(num_steps, every=intervals, interrupted=interrupted):
                self._require_stable(found)
                last = found
                self._record(last)
                if self._checkpoint_due(last.step):
                    self.save(last)
                progress(last.step, self.rows[0] if self.rows else None)
                if interrupted():
                    break
        except (StepError, ArithmeticError) as error:
            frame = self.files.keep_frame(error) if isinstance(error, SpreadError) else ""
            if isinstance(error, Unstable):
                self._go_back(last)
            else:
                self.save(self.dynamics.snapshot())
            saved = f"\nthe last valid state saved is of step {self.saved_step}, in {self.files.restart}"
            error.args = (f"{error}{frame}{saved}",)
            raise
        except BaseException:
            self._go_back(last)
            raise
        self._go_back(last)
        if last.step != self.saved_step:
            self.save(last)
        return last.step

    def save(self, snapshot: Snapshot) -> None:
        """Writes the restart file, after earlier frames and rows are on disk."""
        for trajectory, log in zip(self.trajectories, self.logs, strict=True):
            trajectory.sync()
            log.sync()
        snapshot.save(self.files.restart)
        self.saved_step, self._checkpoint_clock = snapshot.step, time.monotonic()

    def close(self) -> None:
        """Closes the files, and lets other processes record to the prefix."""
        with contextlib.ExitStack() as files:  # closes all, even if one fails
            if self._lock is not None:
                files.callback(self._lock.close)
            for trajectory in self.trajectories:
                files.callback(trajectory.close)
            for log in self.logs:
                files.callback(log.close)

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with contextlib.suppress(*((OSError,) if kind else ())):  # the first error is the one to show
            self.close()

    def _columns(self, number: int) -> tuple[str, ...]:
        return columns_of(
            periodic=self._periodic[number],
            ensemble=self.dynamics.is_ensemble,
            restrained=self._restrained,
            barostat=self.dynamics.motion.barostat is not None,
            exchange=self.dynamics.exchange is not None,
        )

    def _record(self, snapshot: Snapshot) -> None:
        """Writes what is due and not written: an interruption may end a run where it began, or a write may fail."""
        frames = lacking(snapshot.step, self.save_every, [file.num_frames for file in self.trajectories])
        rows = lacking(snapshot.step, self.log_every, [log.num_rows for log in self.logs])
        if frames:
            found = frames_of(snapshot, self._pbc)
            for number in frames:
                self.trajectories[number].append(found[number])
        if rows:
            self.rows = rows_of(
                snapshot,
                self._periodic,
                speed=self._speed(snapshot.timestep),
                exchange=self.dynamics.exchange is not None,
                restrained=self._restrained,
                ensemble=self.dynamics.is_ensemble,
            )
            for number in rows:
                self.logs[number].write(self.rows[number])

    def _go_back(self, snapshot: Snapshot) -> None:
        """Returns to the step of a snapshot: a GPU is ahead of what is recorded."""
        if self.dynamics.num_steps != snapshot.step:
            self.dynamics.restore(snapshot)

    def _frames(self) -> list[tuple[Path, int, bool]]:
        """Of each structure: the path of its trajectory, its number of atoms, and whether frames have a cell."""
        counts = np.diff(self.dynamics.motion.particles.starts).tolist()
        return list(zip(self.files.trajectories, counts, self.dynamics.batch.pbc.any(1).tolist(), strict=True))

    @contextlib.contextmanager
    def _closing_after_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to show
                self.close()
            raise

    def _speed(self, timestep: float) -> float | None:
        """ns/day since the last row."""
        now, before = time.perf_counter(), self._row_clock
        self._row_clock = now
        if before is None:
            return None
        return self.log_every / max(now - before, 1e-9) * timestep * SECONDS_A_DAY / (1e3 * PICOSECOND)

    def _require_stable(self, snapshot: Snapshot) -> None:
        limit = np.maximum(MOST_TEMPERATURE, 10 * snapshot.temperatures)
        bad = np.flatnonzero(~(snapshot.temperature <= limit))
        if len(bad):
            raise Unstable(
                f"step {snapshot.step}: the run is unstable: structure {bad[0]} has a temperature of "
                f"{snapshot.temperature[bad[0]]:.3g} K; a smaller timestep or a relaxed structure may help"
            )

    def _checkpoint_due(self, step: int) -> bool:
        if self.checkpoint_every is not None:
            return step % self.checkpoint_every == 0
        return time.monotonic() - self._checkpoint_clock > CHECKPOINT_SECONDS

    def _settings(self, further: dict[str, Any] | None) -> dict[str, Any]:
        return {**settings_of(self.dynamics, self.save_every, self.log_every, self.format), **(further or {})}
