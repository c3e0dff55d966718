"""Recording: a run with a trajectory and a log for each structure, and a file to continue from."""

from __future__ import annotations

import contextlib
import hashlib
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from torchmdx.dynamics.dynamics import Dynamics
from torchmdx.dynamics.log import Log, Row, columns_of
from torchmdx.dynamics.recorded import atoms_of, frames_of, rows_of
from torchmdx.dynamics.run_files import RunFiles
from torchmdx.dynamics.snapshot import Snapshot
from torchmdx.dynamics.trajectory_formats import AtomNames, TrajectoryFile, TrajectoryFormat, topology_of
from torchmdx.step.results import SpreadError, StepError
from torchmdx.units import PICOSECOND

CHECKPOINT_SECONDS = 60.0  # between restart files, unless a number of steps is given
MOST_TEMPERATURE = 1e5  # K; at this temperature atoms have flown apart, even if all values are finite
SECONDS_A_DAY = 86400.0
SPARE_FILES = 64  # open files of everything else in the process
DCD = TrajectoryFormat("dcd")


class Unstable(StepError):
    """The atoms of a run have flown apart; names the step and the structure."""


class Recording:
    """Writes frames and log rows of a run at multiples of their intervals, step 0 included, without waiting for it.

        dynamics = Dynamics(potential, System.from_ase(atoms), timestep=0.5)
        with Recording.begin(dynamics, "run", save_every=10, log_every=10) as recording:
            recording.run(100)

    For each structure a trajectory and a CSV log: PREFIX.dcd and PREFIX.log, or PREFIX.0.dcd and so on for several;
    `TrajectoryFormat("hdf5")` makes it PREFIX.h5, with energies and, if wanted, velocities.
    PREFIX.restart.npz, replaced atomically once a minute and at the end, is what `resume` continues from, to the bit.
    A run that is killed loses at most the time since then. saved_step: of the restart file. Where an ensemble disagrees
    too much, the frame is appended to PREFIX.uncertain.xyz of its structure.
    """

    def __init__(
        self,
        dynamics: Dynamics,
        files: RunFiles,
        save_every: int,
        log_every: int,
        checkpoint_every: int | None,
        trajectory: TrajectoryFormat,
    ) -> None:
        self.dynamics, self.files, self.format = dynamics, files, trajectory
        self.save_every, self.log_every, self.checkpoint_every = save_every, log_every, checkpoint_every
        self.trajectories: list[TrajectoryFile] = []
        self.logs: list[Log] = []
        self.rows: list[Row] = []
        self.saved_step: int | None = None
        self._recorded_step = -1
        self._row_clock: float | None = None
        self._checkpoint_clock = time.monotonic()
        self._periodic = dynamics.batch.pbc.all(1).tolist()
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
    ) -> Recording:
        """Creates the files, with the current state. settings: further ones that a continuation must share.

        names: of the atoms of each structure, if all have the same, for the topology in HDF5 files.
        Raises FileExistsError for files of an earlier run, unless `overwrite`; OSError.
        """
        files = _checked(dynamics, prefix, save_every, log_every, checkpoint_every, trajectory)
        if dynamics.num_steps:
            raise ValueError(f"a recording begins at step 0, got step {dynamics.num_steps}; resume continues one")
        if not overwrite:
            files.require_new()
        recording = cls(dynamics, files, save_every, log_every, checkpoint_every, trajectory)
        start = dynamics.snapshot()
        files.remove()
        files.write_settings(recording._settings(settings))
        timestep = dynamics.motion.timestep
        numbers = dynamics.batch.atomic_numbers.numpy()
        for number, atoms in enumerate(atoms_of(dynamics.motion.particles)):
            given = (files.trajectories[number], atoms.stop - atoms.start, save_every, recording._periodic[number])
            topology = topology_of(numbers[atoms], names)
            recording.trajectories.append(trajectory.create(*given, timestep, topology))
            recording.logs.append(Log.create(files.logs[number], recording._columns(number)))
        recording._record(start)
        recording.save(start)
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
    ) -> Recording:
        """Continues a recorded run from its restart file; later frames and rows are removed.

        Raises FileNotFoundError without one; ValueError for other settings and damaged files, before any is changed.
        """
        files = _checked(dynamics, prefix, save_every, log_every, checkpoint_every, trajectory)
        recording = cls(dynamics, files, save_every, log_every, checkpoint_every, trajectory)
        files.require_settings(recording._settings(settings))
        for path in (files.restart, *files.trajectories, *files.logs):
            if not path.is_file():
                raise FileNotFoundError(f"a restart continues {str(path)!r}, which does not exist")
        dynamics.restore(files.restart)
        step = dynamics.num_steps
        log_bytes = [
            Log.bytes_up_to(step, path, recording._columns(number), log_every) for number, path in enumerate(files.logs)
        ]
        for number, atoms in enumerate(atoms_of(dynamics.motion.particles)):
            given = (files.trajectories[number], atoms.stop - atoms.start, save_every, recording._periodic[number])
            recording.trajectories.append(trajectory.reopen(*given, step // save_every + 1))
            recording.logs.append(Log.reopen(files.logs[number], log_bytes[number]))
        recording.saved_step = recording._recorded_step = step
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
        last: Snapshot | None = None
        try:
            for last in self.dynamics.snapshots(num_steps, every=intervals, interrupted=interrupted):
                self._require_stable(last)
                self._record(last)
                if self._checkpoint_due(last.step):
                    self.save(last)
                progress(last.step, self.rows[0] if self.rows else None)
                if interrupted():
                    break
        except (StepError, ArithmeticError) as error:
            frame = self.files.keep_frame(error) if isinstance(error, SpreadError) else ""
            if not isinstance(error, Unstable):
                last = self.dynamics.snapshot()
                self.save(last)
            error.args = (f"{error}{frame}{self._after_failure()}",)
            raise
        last = last or self.dynamics.snapshot()
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
        """Closes the files."""
        with contextlib.ExitStack() as files:  # closes all, even if one fails
            for trajectory, log in zip(self.trajectories, self.logs, strict=True):
                files.callback(trajectory.close)
                files.callback(log.close)

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with contextlib.suppress(*((OSError,) if kind else ())):  # the first error is the one to show
            self.close()

    # -- what is written ---------------------------------------------------------------------------------------------

    def _columns(self, number: int) -> tuple[str, ...]:
        return columns_of(
            periodic=self._periodic[number],
            ensemble=self.dynamics.is_ensemble,
            restrained=self._restrained,
            barostat=self.dynamics.motion.barostat is not None,
            exchange=self.dynamics.exchange is not None,
        )

    def _record(self, snapshot: Snapshot) -> None:
        """Writes what is due, once for each step: an interruption may end a run where it began."""
        if snapshot.step == self._recorded_step:
            return
        self._recorded_step = snapshot.step
        if snapshot.step % self.save_every == 0:
            for file, frame in zip(self.trajectories, frames_of(snapshot, self._periodic), strict=True):
                file.append(frame)
        if snapshot.step % self.log_every == 0:
            self.rows = rows_of(
                snapshot,
                self._periodic,
                speed=self._speed(snapshot.timestep),
                exchange=self.dynamics.exchange is not None,
                restrained=self._restrained,
                ensemble=self.dynamics.is_ensemble,
            )
            for log, row in zip(self.logs, self.rows, strict=True):
                log.write(row)

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

    def _after_failure(self) -> str:
        return f"\nthe last valid state saved is of step {self.saved_step}, in {self.files.restart}"

    def _settings(self, further: dict[str, Any] | None) -> dict[str, Any]:
        motion, batch = self.dynamics.motion, self.dynamics.batch
        particles = motion.particles
        atoms = batch.atomic_numbers.numpy().tobytes() + particles.masses.tobytes() + particles.mobile.tobytes()
        return {
            "atoms (SHA-256 of elements, masses and which move)": hashlib.sha256(atoms).hexdigest(),
            "atoms of the structures": np.diff(particles.starts).tolist(),
            "charges in e": batch.charge.tolist(),
            "integrator": repr(motion.integrator),
            "timestep in fs": motion.timestep,
            "seeds": motion.seeds.tolist(),
            **({"barostat": repr(motion.barostat)} if motion.barostat is not None else {}),
            **({"restraints (SHA-256)": motion.restraints.digest()} if motion.restraints is not None else {}),
            "steps between exchanges": None if self.dynamics.exchange is None else self.dynamics.exchange.every,
            "steps between frames": self.save_every,
            "steps between log rows": self.log_every,
            "trajectories": self.format.name + " with velocities" * self.format.velocities,
            **(further or {}),
        }


def _checked(
    dynamics: Dynamics,
    prefix: str,
    save_every: int,
    log_every: int,
    checkpoint_every: int | None,
    trajectory: TrajectoryFormat,
) -> RunFiles:
    """The files of a run. Raises ValueError for intervals below 1, OSError if so many files cannot be open at once."""
    for name, value in (("save_every", save_every), ("log_every", log_every), ("checkpoint_every", checkpoint_every)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be >= 1 step, got {value}")
    needed = 2 * dynamics.batch.num_systems + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise OSError(
                f"{dynamics.batch.num_systems} structures need {needed} open files, but this process may have {hard}"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return RunFiles(prefix, dynamics.batch.num_systems, trajectory.ending)
