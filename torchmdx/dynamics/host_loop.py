"""The loop of a run in Python: one call of the captured step, and NumPy, for each step. Used on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from torchmdx.dynamics.frame import frame_of, set_frame
from torchmdx.dynamics.motion import Motion, rescaling
from torchmdx.dynamics.random_numbers import Noise
from torchmdx.dynamics.snapshot import Snapshot
from torchmdx.step.captured_step import CapturedStep
from torchmdx.units import FORCE_TO_ACCELERATION

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


class HostLoop:
    """Positions, velocities and forces on the host, and their motion."""

    why = "the loop runs in Python, one evaluation at a time"
    steps_per_replay = 1

    def __init__(self, step: CapturedStep, motion: Motion, positions: Floats, velocities: Floats, cell: Floats) -> None:
        self.step, self.cell = step, cell
        self.set_motion(motion)
        result = step(positions, cell)
        added = self._restrained(positions, result.forces)
        self._state = _State(0, positions.copy(), velocities.copy(), added[0], result.energy, added[1])

    def set_motion(self, motion: Motion) -> None:
        self.motion, particles = motion, motion.particles
        self._noise = Noise(motion.seeds[particles.system], particles.place)
        self._scale = motion.noise_scale()[:, None] if motion.is_langevin else None
        self._kick = motion.half_kick * particles.inverse_masses()[:, None]
        self._first = motion.first_counted() if motion.is_bussi else None

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
            temperatures=motion.temperatures.copy(),
            cell=self.cell.copy(),
            frame=frame_of(self.step),
            particles=motion.particles,
        )

    def restore(self, given: Snapshot) -> None:
        self.step(given.positions, given.cell)  # raises before anything has changed
        set_frame(self.step, given.frame)
        self.cell = given.cell.copy()
        kept = (given.positions, given.velocities, given.forces, given.energy, given.restraint_energy)
        self._state = _State(given.step, *kept)

    def set_velocities(self, velocities: Floats) -> None:
        self._state = replace(self._state, velocities=velocities.copy())

    def _advance(self) -> None:
        """One step. If the evaluation raises, the state before it is kept."""
        state, motion = self._state, self.motion
        number = state.step + 1
        half = state.velocities + self._kick * state.forces
        if self._scale is None:
            velocities, positions = half, state.positions + motion.timestep * half
        else:
            velocities = motion.kept * half + self._scale * self._noise(number)
            positions = state.positions + 0.5 * motion.timestep * (half + velocities)
        # The captured step refreshes its frame and audits by the number of evaluations: here that of the run's steps.
        self.step.num_evaluations = state.step
        result = self.step(positions, copy=False)
        forces, restraint_energy = self._restrained(positions, result.forces)
        velocities = velocities + self._kick * forces
        if self._first is not None:
            velocities = velocities * self._alpha(velocities, number)[motion.particles.system, None]
        self._state = _State(number, positions, velocities, forces, result.energy.copy(), restraint_energy)

    def _restrained(self, positions: Floats, forces: Floats) -> tuple[Floats, Floats]:
        """Forces with those of restraints, and the energies [S] of these. Raises RestraintError."""
        terms = self.motion.restraints
        if terms is None:
            return forces.copy(), np.zeros(self.motion.particles.num_systems)
        energy, added, _ = terms.evaluate(positions)
        if not np.isfinite(added).all():
            terms.require_gradients(positions)
        return forces + added, energy

    def _alpha(self, velocities: Floats, number: int) -> Floats:
        """The factors [S] of velocity rescaling."""
        motion, particles = self.motion, self.motion.particles
        noise = self._noise(number)
        assert self._first is not None
        first = noise[self._first, 0]
        squares = np.where(particles.counted, (noise * noise).sum(-1), 0.0)
        others = np.bincount(particles.system, squares, particles.num_systems) - first * first
        kinetic = FORCE_TO_ACCELERATION * particles.kinetic_energy(velocities)
        return rescaling(kinetic, motion.thermal(), motion.kept, first, others)
