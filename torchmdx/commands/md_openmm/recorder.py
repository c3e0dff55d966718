"""Recorder: writes frames, log rows and checkpoints during a run in OpenMM."""

from __future__ import annotations

import time
from typing import Any

from torchmdx.commands.md_openmm.checkpoint import Checkpoint, write_checkpoint
from torchmdx.commands.md_openmm.simulation import Simulation
from torchmdx.dynamics.log import LogRow
from torchmdx.dynamics.run.files import RunFiles
from torchmdx.dynamics.run.outputs import RunOutputs, Shape
from torchmdx.dynamics.trajectory import TrajectoryFrame
from torchmdx.dynamics.trajectory_formats import TrajectoryFormat, topology_of

GOOD_SECONDS = 1.0  # between states kept in memory for a checkpoint after a failure
DCD = TrajectoryFormat("dcd")


class Recorder:
    """The outputs of a simulation; checkpoints only after frames and rows are on disk."""

    def __init__(self, simulation: Simulation, files: RunFiles, outputs: RunOutputs) -> None:
        self.simulation, self.files, self.outputs = simulation, files, outputs
        self.good: Checkpoint | None = None
        self.saved_step: int | None = None  # of the checkpoint files
        self._good_clock = time.monotonic()

    @classmethod
    def begin(cls, simulation: Simulation, files: RunFiles, settings: dict[str, Any]) -> Recorder:
        """Creates the files and writes the state at step 0 to each of them. settings: that a restart must share."""
        simulation.measure()  # raises before any file is changed
        files.remove()
        files.write_settings(settings)
        chosen, topology = simulation.settings, topology_of(simulation.structure.atomic_numbers)
        given = ([shape_of(simulation)], chosen.schedule, chosen.timestep, DCD, [topology])
        recorder = cls(simulation, files, RunOutputs.create(files, *given))
        recorder.record()
        recorder.save_checkpoint()
        return recorder

    @classmethod
    def resume(cls, simulation: Simulation, files: RunFiles) -> Recorder:
        """Opens the files of an earlier run, cut to the step of the simulation."""
        files.require_there()
        chosen, step = simulation.settings, simulation.current_step
        given = ([shape_of(simulation)], chosen.schedule, chosen.timestep, DCD, step)
        recorder = cls(simulation, files, RunOutputs.reopen(files, *given))
        recorder._keep(simulation.checkpoint())
        recorder.saved_step = step
        return recorder

    @property
    def row(self) -> LogRow | None:
        """The newest one."""
        return self.outputs.rows[0] if self.outputs.rows else None

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

    def _frames(self) -> list[TrajectoryFrame]:
        return [TrajectoryFrame(*self.simulation.geometry())]

    def _keep(self, checkpoint: Checkpoint) -> Checkpoint:
        self.good, self._good_clock = checkpoint, time.monotonic()
        return checkpoint


def shape_of(simulation: Simulation) -> Shape:
    """What the files of a simulation hold."""
    structure = simulation.structure
    return Shape(structure.num_atoms, structure.cell is not None, simulation.log_columns)
