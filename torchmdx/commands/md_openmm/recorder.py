"""Recorder: takes the steps of a run in OpenMM, and writes frames, log rows and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torchmdx.commands.md_openmm.checkpoint import Checkpoint, write_checkpoint
from torchmdx.commands.md_openmm.simulation import Simulation, SimulationError
from torchmdx.dynamics.log import LogRow
from torchmdx.dynamics.run.files import RunFiles
from torchmdx.dynamics.run.outputs import RunOutputs
from torchmdx.dynamics.trajectory import TrajectoryFrame
from torchmdx.dynamics.trajectory_formats import TrajectoryFormat, topology_of

SECONDS_A_PIECE = 0.2  # longest delay before a signal is handled
GOOD_SECONDS = 1.0  # between states kept in memory for a checkpoint after a failure


class Recorder:
    """The outputs of a simulation; checkpoints only after frames and rows are on disk."""

    def __init__(self, simulation: Simulation, files: RunFiles) -> None:
        chosen = simulation.settings
        self.simulation, self.files = simulation, files
        self.outputs = RunOutputs(files, chosen.schedule, chosen.timestep, TrajectoryFormat("dcd"))
        self.good: Checkpoint | None = None
        self.saved_step: int | None = None  # of the checkpoint files
        self._good_clock = time.monotonic()

    @classmethod
    def begin(cls, simulation: Simulation, files: RunFiles, settings: dict[str, Any]) -> Recorder:
        """Creates the files and writes the state at step 0 to each of them. settings: that a restart must share."""
        simulation.measure()  # raises before any file is changed
        files.remove()
        files.write_settings(settings)
        recorder = cls(simulation, files)
        recorder.outputs.create([simulation.shape], [topology_of(simulation.structure.atomic_numbers)])
        recorder.record()
        recorder.save_checkpoint()
        return recorder

    @classmethod
    def resume(cls, simulation: Simulation, files: RunFiles) -> Recorder:
        """Opens the files of an earlier run, cut to the step of the simulation."""
        files.require_there()
        recorder = cls(simulation, files)
        recorder.outputs.reopen([simulation.shape], recorder.step)
        recorder._keep(simulation.checkpoint())
        recorder.saved_step = recorder.step
        return recorder

    @property
    def step(self) -> int:
        return self.simulation.current_step

    def run(
        self, num_steps: int, *, interrupted: Callable[[], bool], progress: Callable[[int, LogRow | None], None]
    ) -> int:
        """Takes this many steps, fewer if `interrupted` says so; returns the step reached, which is saved.

        In short pieces, for signals and the progress line; their lengths do not affect the trajectory. After a failure
        the last valid state is saved, and the error is raised. progress: called with the step and the newest row.
        """
        simulation, inner, step = self.simulation, self.simulation.settings.inner, self.step
        piece, end = inner, step + num_steps
        try:
            while step < end and not interrupted():
                progress(step, self.outputs.row)
                target = min(self.outputs.schedule.next_stop(step), step + piece, end)
                started = time.perf_counter()
                simulation.step(target - step)
                seconds = max(time.perf_counter() - started, 1e-9)
                piece = max(inner, min(2 * piece, int(SECONDS_A_PIECE * (target - step) / seconds) // inner * inner))
                step = target
                self.record()
            self.save_checkpoint()
            progress(step, self._newest())
        except SimulationError as error:
            raise SimulationError(f"{error}{self.after_failure()}") from error
        return step

    def record(self) -> None:
        """Writes what is due at the current step. Raises SimulationError, and writes nothing, for an invalid state."""
        step = self.simulation.current_step
        self.outputs.record(step, self._frames, lambda: [self.simulation.measure()])
        if self.outputs.checkpoint_due(step):
            self.save_checkpoint()
        elif time.monotonic() - self._good_clock > GOOD_SECONDS:
            self._keep(self.simulation.checkpoint())

    def save_checkpoint(self, checkpoint: Checkpoint | None = None) -> None:
        """Writes a checkpoint, by default of the current state, after earlier frames and rows are on disk."""
        self.outputs.sync()
        saved = self._keep(checkpoint or self.simulation.checkpoint())
        write_checkpoint(self.files, saved)
        self.saved_step = saved.step

    def after_failure(self) -> str:
        """Saves the last valid state, if there is one; returns what an error is to say of that."""
        if self.good is None:
            return ""
        self.save_checkpoint(self.good)
        files = self.files
        return (
            f"\nthe last valid state, of step {self.good.step}, was saved to {files.path('.chk')} and "
            f"{files.path('.xml')}; frames and log are in {files.trajectories[0]} and {files.logs[0]}"
        )

    def close(self) -> None:
        self.outputs.close()

    def _newest(self) -> LogRow:
        """The values of the current step, which the log may lack."""
        row = self.outputs.row
        return row if row is not None and row.step == self.step else self.simulation.measure()

    def _frames(self) -> list[TrajectoryFrame]:
        return [TrajectoryFrame(*self.simulation.geometry())]

    def _keep(self, checkpoint: Checkpoint) -> Checkpoint:
        self.good, self._good_clock = checkpoint, time.monotonic()
        return checkpoint
