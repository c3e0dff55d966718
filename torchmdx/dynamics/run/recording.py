"""Recording: a run with a trajectory and a log for each structure, and a file to continue from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from torchmdx.dynamics.dynamics import Dynamics
from torchmdx.dynamics.log import LogRow, columns_of
from torchmdx.dynamics.orientation import tell_of_cells
from torchmdx.dynamics.run.continuation import CELLS, settings_of
from torchmdx.dynamics.run.files import RunFiles, allow_open_files
from torchmdx.dynamics.run.outputs import OutputSchedule, RunOutputs, Shape, closing_after_errors, is_unstable
from torchmdx.dynamics.run.recorded import atoms_of, frames_of, rows_of
from torchmdx.dynamics.snapshot import Snapshot
from torchmdx.dynamics.trajectory_formats import AtomNames, TrajectoryFormat, topology_of
from torchmdx.runtime.output_lock import OutputLock
from torchmdx.step.results import SpreadError, StepError

DCD = TrajectoryFormat("dcd")


class Unstable(StepError):
    """The atoms of a run have flown apart; names the step and the structure."""


class Recording:
    """Writes frames and log rows of a run at multiples of their intervals, step 0 included, without waiting for it.

    Example::

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
        prefix: str,
        schedule: OutputSchedule,
        trajectory: TrajectoryFormat,
        lock: OutputLock | None = None,
    ) -> None:
        """lock: of the prefix, if the caller holds it."""
        count = dynamics.batch.num_systems
        self.dynamics, self.schedule, self.format = dynamics, schedule, trajectory
        self.files = RunFiles(prefix, count, trajectory.ending)
        allow_open_files(count)
        self._lock = OutputLock(prefix) if lock is None else None
        self.outputs = RunOutputs(self.files, schedule, dynamics.motion.timestep, trajectory)
        self.saved_step: int | None = None
        self._pbc = np.asarray(dynamics.batch.pbc)
        self._periodic: list[bool] = dynamics.batch.pbc.all(1).tolist()
        self._logged = dict(
            ensemble=dynamics.is_ensemble,
            uncertainty=dynamics.has_uncertainty,
            restrained=dynamics.motion.restraints is not None,
            exchange=dynamics.exchange is not None,
        )

    @property
    def step(self) -> int:
        return self.dynamics.num_steps

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

        Args:
            names: Of the atoms of each structure, if all have the same, for the topology in HDF5 files.
            lock: Of the prefix, if the caller holds it.

        Raises:
            FileExistsError: For files of an earlier run, unless `overwrite`.
            OSError: Also if another process records to this prefix.
        """
        schedule = OutputSchedule(save_every, log_every, checkpoint_every)
        if dynamics.num_steps:
            raise ValueError(f"a recording begins at step 0, got step {dynamics.num_steps}; resume continues one")
        recording = cls(dynamics, prefix, schedule, trajectory, lock)
        files = recording.files
        with closing_after_errors(recording):
            if not overwrite:
                files.require_new()
            start = dynamics.snapshot()
            files.remove()
            files.write_settings(recording._settings(settings))
            numbers = dynamics.batch.atomic_numbers.numpy()
            topologies = [topology_of(numbers[own], names) for own in atoms_of(dynamics.motion.particles)]
            recording.outputs.create(recording._shapes(), topologies)
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

        Raises FileNotFoundError without the files; ValueError for other settings and damaged files, before any is
        changed; OSError.

        Args:
            dynamics: Made as that of `begin`, with the same potential, structures and settings.
        """
        schedule = OutputSchedule(save_every, log_every, checkpoint_every)
        recording = cls(dynamics, prefix, schedule, trajectory, lock)
        files = recording.files
        with closing_after_errors(recording):
            not_written = files.require_settings(recording._settings(settings))
            files.require_there(files.restart)
            dynamics.restore(files.restart)
            recording.outputs.reopen(recording._shapes(), dynamics.num_steps)
            recording.saved_step = dynamics.num_steps
            tell_of_cells(dynamics.batch.cell.numpy(), recording._pbc, trajectory.name, CELLS in not_written)
        return recording

    def run(
        self,
        num_steps: int,
        *,
        interrupted: Callable[[], bool] = lambda: False,
        progress: Callable[[int, LogRow | None], None] = lambda step, row: None,
    ) -> int:
        """Takes this many steps, fewer if `interrupted` says so; returns the step reached, which is saved.

        After a failure the last valid state is saved, and the error is raised; a SpreadError names the file that its
        frame was appended to. progress: called with the step and the newest row of the first structure.
        """
        last, intervals = self.dynamics.snapshot(), self.schedule.intervals
        try:
            self._record(last)  # what an earlier call could not write
            for found in self.dynamics.snapshots(num_steps, every=intervals, interrupted=interrupted):
                self._require_stable(found)
                last = found
                self._record(last)
                if self.outputs.checkpoint_due(last.step):
                    self.save(last)
                progress(last.step, self.outputs.row)
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
        self.outputs.sync()
        snapshot.save(self.files.restart)
        self.saved_step = snapshot.step

    def close(self) -> None:
        """Closes the files, and lets other processes record to the prefix."""
        with contextlib.ExitStack() as files:  # closes all, even if one fails
            if self._lock is not None:
                files.callback(self._lock.close)
            files.callback(self.outputs.close)

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with contextlib.suppress(*((OSError,) if kind else ())):  # the first error is the one to show
            self.close()

    def _shapes(self) -> list[Shape]:
        """What the files of each structure hold."""
        dynamics = self.dynamics
        counts, celled = np.diff(dynamics.motion.particles.starts).tolist(), dynamics.batch.pbc.any(1).tolist()
        barostat = dynamics.motion.barostat is not None
        columns = [columns_of(periodic=periodic, barostat=barostat, **self._logged) for periodic in self._periodic]
        return [Shape(*given) for given in zip(counts, celled, columns, strict=True)]

    def _record(self, snapshot: Snapshot) -> None:
        def rows() -> list[LogRow]:
            return rows_of(snapshot, self._periodic, **self._logged)

        self.outputs.record(snapshot.step, lambda: frames_of(snapshot, self._pbc), rows)

    def _go_back(self, snapshot: Snapshot) -> None:
        """Returns to the step of a snapshot: a GPU is ahead of what is recorded."""
        if self.dynamics.num_steps != snapshot.step:
            self.dynamics.restore(snapshot)

    def _require_stable(self, snapshot: Snapshot) -> None:
        bad = np.flatnonzero(is_unstable(snapshot.temperature, snapshot.temperatures))
        if len(bad):
            raise Unstable(
                f"step {snapshot.step}: the run is unstable: structure {bad[0]} has a temperature of "
                f"{snapshot.temperature[bad[0]]:.3g} K; a smaller timestep or a relaxed structure may help"
            )

    def _settings(self, further: dict[str, Any] | None) -> dict[str, Any]:
        schedule = self.schedule
        return {**settings_of(self.dynamics, schedule.save_every, schedule.log_every, self.format), **(further or {})}
