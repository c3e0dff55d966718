"""The loop of a run in Python: one call of the captured step, and NumPy, for each step. Used on a CPU.

With multiple time steps one advance is `inner` steps with the fast potential, and one evaluation of the full one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from torchmdx.dynamics.barostat import barostat_noise, volumes
from torchmdx.dynamics.frame import frame_of, set_frame
from torchmdx.dynamics.motion import Motion
from torchmdx.dynamics.multiple_steps import disagreement, of_fast_potential, worst_atom
from torchmdx.dynamics.snapshot import Snapshot, doubts_named, kick_forces
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.results import NonFiniteError, SpreadError, StepResult
from torchmdx.step.spread_limit import at_step

log = logging.getLogger(__name__)

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
    energy_doubt: Floats  # the first of the step's doubts, and the largest of the second
    largest_doubt: Floats
    cell: Floats
    fast_forces: Floats | None = None


class HostLoop:
    """Positions, velocities and forces on the host, and their motion. fast: the step of the fast potential."""

    steps_per_replay = 1
    exchanges = False  # attempts are made by `Dynamics`

    def __init__(
        self,
        step: CapturedStep,
        motion: Motion,
        positions: Floats,
        velocities: Floats,
        cell: Floats,
        fast: CapturedStep | None = None,
    ) -> None:
        self.step, self.fast, self.num_small_blocks = step, fast, 0
        self._unknown = np.full(motion.particles.num_systems, np.nan)
        self.set_motion(motion)
        start = self._evaluated(0, positions.copy(), velocities.copy(), cell.copy())
        self._state = self._with_fast_forces(start)
        self._agrees(self._state, 0)

    def set_motion(self, motion: Motion) -> None:
        self.motion, self._integration = motion, motion.integrator.on_host(motion)
        if (multiple := motion.multiple_steps) is not None:
            self._limits, self._slow_kicks = multiple.limits(motion), multiple.inner * motion.kicks()

    @property
    def why(self) -> str:
        on_gpu, integrator = self.step.device.type == "cuda", self.motion.integrator
        reason = f", since {integrator!r} has no step on a GPU" if on_gpu and not integrator.has_device_step else ""
        fast = "" if self.fast is None else f"; the fast potential: {self.fast.engine_why}"
        return f"the loop runs in Python, one evaluation at a time{reason}; {self.step.engine_why}{fast}"

    @property
    def num_recoveries(self) -> int:
        return self.step.num_recoveries + (0 if self.fast is None else self.fast.num_recoveries)

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
            **doubts_named(self.step.buffers.doubts, state.energy_doubt.copy(), state.largest_doubt.copy()),
            temperatures=motion.temperatures.copy(),
            cell=state.cell.copy(),
            frame=frame_of(self.step),
            particles=motion.particles,
            kick=motion.thermal_kick,
            inner=motion.inner if self._difference_is_small(state) else 1,
            fast_forces=None if state.fast_forces is None else state.fast_forces.copy(),
            fast_frame=None if self.fast is None else frame_of(self.fast),
        )

    def restore(self, given: Snapshot) -> None:
        found = self._evaluation(given.step, given.positions, given.cell)  # raises before anything has changed
        kept = (given.positions, given.velocities, given.forces, given.energy, given.restraint_energy, given.virial)
        state = self._with_fast_forces(_State(given.step, *kept, *self._doubts(found), given.cell))
        set_frame(self.step, given.frame)
        if self.fast is not None and given.fast_frame is not None:
            set_frame(self.fast, given.fast_frame)
            state = replace(state, fast_forces=given.fast_forces)
        self._state = state

    def set_velocities(self, velocities: Floats) -> None:
        self._state = replace(self._state, velocities=velocities.copy())

    def _advance(self) -> None:
        """One step, or those up to the next evaluation of the full potential. If one raises, the state is kept."""
        state, motion = self._state, self.motion
        if motion.multiple_steps is None:
            self._state = self._moved(state, self._scaling(state.forces), self._evaluated)
            return
        number, reached = state.step + motion.inner, None
        if self._agrees(state, state.step):
            reached = self._block(state, self._scaling(kick_forces(state.forces, state.fast_forces, motion.inner)))
        if reached is None or not self._agrees(reached, number):
            log.warning("steps %d to %d use the full potential alone", state.step + 1, number)
            reached, scale = state, self._scaling(state.forces)
            for _ in range(motion.inner):
                reached, scale = self._moved(reached, scale, self._evaluated), None
            reached = self._with_fast_forces(reached)
            self.num_small_blocks += 1
        self._state = reached

    def _moved(self, state: _State, scale: Floats | None, evaluate: Callable[..., _State]) -> _State:
        """The state after a step of the integrator. scale: what the barostat multiplies lengths with [S]."""
        number = state.step + 1
        positions, velocities = self._integration.move(number, state.positions, state.velocities, state.forces)
        cell = state.cell
        if scale is not None:
            atoms = scale[self.motion.particles.system, None]
            positions, velocities, cell = positions * atoms, velocities / atoms, cell * scale[:, None, None]
        reached = evaluate(number, positions, velocities, cell)
        return replace(reached, velocities=self._integration.complete(number, velocities, reached.forces))

    # -- multiple time steps -----------------------------------------------------------------------------------------

    def _block(self, state: _State, scale: Floats | None) -> _State:
        """The state after `inner` steps with the fast potential between two kicks of the difference."""
        assert state.fast_forces is not None
        velocities = state.velocities + self._slow_kicks * (state.forces - state.fast_forces)
        inner = replace(state, velocities=velocities, forces=state.fast_forces)
        for _ in range(self.motion.inner):
            inner, scale = self._moved(inner, scale, self._fast_evaluated), None
        reached = self._evaluated(inner.step, inner.positions, inner.velocities, inner.cell)
        velocities = inner.velocities + self._slow_kicks * (reached.forces - inner.forces)
        return replace(reached, velocities=velocities, fast_forces=inner.forces)

    def _fast_evaluated(self, number: int, positions: Floats, velocities: Floats, cell: Floats) -> _State:
        """A state with the forces of the fast potential and of restraints."""
        given = None if self.motion.barostat is None and number else cell
        forces, none = self._fast_forces(number, positions, given), self._unknown
        return _State(number, positions, velocities, forces, none, none, none, none, none, cell)

    def _with_fast_forces(self, state: _State) -> _State:
        if self.fast is None:
            return state
        return replace(state, fast_forces=self._fast_forces(state.step, state.positions, state.cell))

    def _fast_forces(self, number: int, positions: Floats, cell: Floats | None) -> Floats:
        """Those of the fast potential and of restraints. Raises NonFiniteError, RestraintError."""
        assert self.fast is not None
        self.fast.num_evaluations = max(number - 1, 0)
        try:
            forces: Floats = self.fast(positions, cell, copy=False).forces.copy()
        except NonFiniteError as error:
            raise of_fast_potential(error) from None
        return forces if self.motion.restraints is None else forces + self._pull(positions)

    def _agrees(self, state: _State, number: int) -> bool:
        """Whether the potentials agree within the limits. Raises DisagreementError unless small steps may follow."""
        multiple = self.motion.multiple_steps
        if multiple is None or state.fast_forces is None:
            return True
        if self._difference_is_small(state):
            return True
        error = disagreement(number, state.forces - state.fast_forces, self._limits, self.motion.particles.starts)
        if not multiple.small_steps:
            raise error
        log.warning("%s", error)
        return False

    def _difference_is_small(self, state: _State) -> bool:
        return state.fast_forces is None or worst_atom(state.forces - state.fast_forces, self._limits)[1] <= 1

    def _pull(self, positions: Floats) -> Floats:
        """The forces of restraints. Raises RestraintError."""
        assert self.motion.restraints is not None
        added = self.motion.restraints.evaluate(positions)[1]
        self._require_gradients(positions, added)
        return added

    def _require_gradients(self, positions: Floats, added: Floats) -> None:
        """Raises RestraintError for forces of restraints that are not finite."""
        if self.motion.restraints is not None and not np.isfinite(added).all():
            self.motion.restraints.require_gradients(positions)

    # -- evaluations -------------------------------------------------------------------------------------------------

    def _evaluated(self, number: int, positions: Floats, velocities: Floats, cell: Floats) -> _State:
        """A state with the energies, forces and virials of potential and restraints. Raises RestraintError."""
        motion = self.motion
        # The captured step refreshes its frame and audits by the number of evaluations: here that of the run's steps.
        self.step.num_evaluations = max(number - 1, 0)
        found = self._evaluation(number, positions, None if motion.barostat is None and number else cell)
        restraint_energy, added, virial = motion.outside(positions, cell, getattr(found, "stress", None))
        self._require_gradients(positions, added)
        forces, energy = found.forces + added, found.energy.copy()
        energies = (energy, restraint_energy, virial, *self._doubts(found))
        return _State(number, positions, velocities, forces, *energies, cell)

    def _evaluation(self, number: int, positions: Floats, cell: Floats | None) -> StepResult:
        """The result of the potential, valid until the next one. Raises SpreadError, with the step."""
        try:
            return self.step(positions, cell, copy=False)
        except SpreadError as error:
            raise at_step(error, number, self.motion.particles.starts) from None

    def _doubts(self, found: StepResult) -> tuple[Floats, Floats]:
        """Spread or uncertainty of the energy [S], and the largest one of an atom [S]; NaN where there is none."""
        if (names := self.step.buffers.doubts) is None:
            return self._unknown, self._unknown
        of_systems, of_atoms = (getattr(found, name) for name in names)
        return of_systems.copy(), np.maximum.reduceat(of_atoms, self.motion.particles.starts[:-1])

    def _scaling(self, forces: Floats) -> Floats | None:
        """The factors [S] of lengths of a step whose first kick is of these forces. Raises CellError."""
        state, motion = self._state, self.motion
        if motion.barostat is None:
            return None
        velocities = motion.particles.kicked(state.velocities, motion.thermal_kick, forces)
        kinetic = motion.particles.kinetic_virial(motion.particles.kinetic_energy(velocities), motion.temperatures)
        noise = barostat_noise(motion.seeds, state.step + 1)
        given = (volumes(state.cell), kinetic, state.virial, motion.temperatures, noise)
        return motion.barostat.scaling(motion.inner * motion.timestep, *given)
