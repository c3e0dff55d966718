"""The loop of a run in Python: one call of the captured step, and NumPy, for each step. Used on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from torchmdx.dynamics.barostat import CellRescaling, barostat_noise, volumes
from torchmdx.dynamics.frame import frame_of, set_frame
from torchmdx.dynamics.motion import Motion
from torchmdx.dynamics.snapshot import Snapshot
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.results import SpreadError, StepResult
from torchmdx.step.spread_limit import at_step

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _State:
    """A step and what belongs to it; replaced as a whole, so that an interruption leaves no mixture."""

    step: int
    positions: Floats
    velocities: Floats
    forces: Floats
    energy: Floats
    restraint_energy: Floats
    virial: Floats
    energy_spread: Floats
    largest_force_spread: Floats
    cell: Floats


class HostLoop:
    """Positions, velocities and forces on the host, and their motion."""

    steps_per_replay = 1
    exchanges = False  # attempts are made by `Dynamics`

    def __init__(self, step: CapturedStep, motion: Motion, positions: Floats, velocities: Floats, cell: Floats) -> None:
        self.step = step
        self._unknown = np.full(motion.particles.num_systems, np.nan)
        self.set_motion(motion)
        self._state = self._evaluated(0, positions.copy(), velocities.copy(), cell.copy())

    def set_motion(self, motion: Motion) -> None:
        self.motion, self._integration = motion, motion.integrator.on_host(motion)

    @property
    def why(self) -> str:
        on_gpu, integrator = self.step.device.type == "cuda", self.motion.integrator
        reason = f", since {integrator!r} has no step on a GPU" if on_gpu and not integrator.has_device_step else ""
        return f"the loop runs in Python, one evaluation at a time{reason}; {self.step.engine_why}"

    @property
    def num_recoveries(self) -> int:
        return self.step.num_recoveries

    def close(self) -> None:
        """Nothing to end."""

    @property
    def num_steps(self) -> int:
        return self._state.step

    def snapshots(self, stops: Iterator[int], interrupted: Callable[[], bool] = lambda: False) -> Iterator[Snapshot]:
        """Integrates to each of the steps in turn, and yields the state there, or where it is interrupted."""
        for stop in stops:
            while self._state.step < stop:
                if interrupted():
                    yield self.snapshot()
                    return
                self._advance()
            yield self.snapshot()

    def snapshot(self) -> Snapshot:
        state, motion = self._state, self.motion
        return Snapshot(
            step=state.step,
            timestep=motion.timestep,
            positions=state.positions.copy(),
            velocities=state.velocities.copy(),
            forces=state.forces.copy(),
            energy=state.energy.copy(),
            restraint_energy=state.restraint_energy.copy(),
            virial=state.virial.copy(),
            energy_spread=state.energy_spread.copy(),
            largest_force_spread=state.largest_force_spread.copy(),
            temperatures=motion.temperatures.copy(),
            cell=state.cell.copy(),
            frame=frame_of(self.step),
            particles=motion.particles,
            kick=motion.thermal_kick,
        )

    def restore(self, given: Snapshot) -> None:
        found = self._evaluation(given.step, given.positions, given.cell)  # raises before anything has changed
        spreads = self._spreads(found)
        set_frame(self.step, given.frame)
        kept = (given.positions, given.velocities, given.forces, given.energy, given.restraint_energy, given.virial)
        self._state = _State(given.step, *kept, *spreads, given.cell)

    def set_velocities(self, velocities: Floats) -> None:
        self._state = replace(self._state, velocities=velocities.copy())

    def _advance(self) -> None:
        """One step. If the evaluation raises, the state before it is kept."""
        state, motion = self._state, self.motion
        number = state.step + 1
        positions, velocities = self._integration.move(number, state.positions, state.velocities, state.forces)
        cell = state.cell
        if motion.barostat is not None:
            scale = self._scaling(motion.barostat, number)
            atoms = scale[motion.particles.system, None]
            positions, velocities, cell = positions * atoms, velocities / atoms, cell * scale[:, None, None]
        # The captured step refreshes its frame and audits by the number of evaluations: here that of the run's steps.
        self.step.num_evaluations = state.step
        reached = self._evaluated(number, positions, velocities, cell)
        self._state = replace(reached, velocities=self._integration.complete(number, velocities, reached.forces))

    def _evaluated(self, number: int, positions: Floats, velocities: Floats, cell: Floats) -> _State:
        """A state with the energies, forces and virials of potential and restraints. Raises RestraintError."""
        motion = self.motion
        found = self._evaluation(number, positions, None if motion.barostat is None and number else cell)
        forces, energy = found.forces.copy(), found.energy.copy()
        restraint_energy, virial = np.zeros_like(energy), np.full_like(energy, np.nan)
        if motion.barostat is not None:
            virial = -volumes(cell) * np.trace(found.stress, axis1=1, axis2=2)
        if motion.restraints is not None:
            restraint_energy, added, inner = motion.restraints.evaluate(positions)
            if not np.isfinite(added).all():
                motion.restraints.require_gradients(positions)
            forces, virial = forces + added, virial + inner
        energies = (energy, restraint_energy, virial, *self._spreads(found))
        return _State(number, positions, velocities, forces, *energies, cell)

    def _evaluation(self, number: int, positions: Floats, cell: Floats | None) -> StepResult:
        """The result of the potential, valid until the next one. Raises SpreadError, with the step."""
        try:
            return self.step(positions, cell, copy=False)
        except SpreadError as error:
            raise at_step(error, number, self.motion.particles.starts) from None

    def _spreads(self, found: StepResult) -> tuple[Floats, Floats]:
        """The spread of the energy [S] eV and the largest one of a force [S] eV/Å; NaN of a single potential."""
        if found.energy_spread is None:
            return self._unknown, self._unknown
        return found.energy_spread.copy(), np.maximum.reduceat(found.force_spread, self.motion.particles.starts[:-1])

    def _scaling(self, barostat: CellRescaling, number: int) -> Floats:
        """The factors [S] of lengths of a step. Raises CellError."""
        state, motion = self._state, self.motion
        velocities = motion.particles.kicked(state.velocities, motion.thermal_kick, state.forces)
        kinetic = motion.particles.kinetic_virial(motion.particles.kinetic_energy(velocities), motion.temperatures)
        noise = barostat_noise(motion.seeds, number)
        given = (volumes(state.cell), kinetic, state.virial, motion.temperatures, noise)
        return barostat.scaling(motion.timestep, *given)
