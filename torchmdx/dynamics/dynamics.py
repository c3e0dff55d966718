"""Dynamics: molecular dynamics of one or many structures, in a loop on the device of the potential."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from torchmdx.dynamics.barostat import CellRescaling, checked_barostat
from torchmdx.dynamics.exchange import TemperatureExchange, exchange_of
from torchmdx.dynamics.integrators import Integrator, integrator_of
from torchmdx.dynamics.loops import make_loop, make_process_loop, require_replays, step_of_fast, stops
from torchmdx.dynamics.motion import Motion
from torchmdx.dynamics.multiple_steps import multiple_steps_of, require_multiple
from torchmdx.dynamics.particles import particles_of
from torchmdx.dynamics.restraint_terms import RestraintTerms
from torchmdx.dynamics.restraints import Restraint
from torchmdx.dynamics.settings import (
    checked_devices,
    checked_seeds,
    checked_temperatures,
    checked_timestep,
    checked_velocities,
    warn_of_priors,
)
from torchmdx.dynamics.snapshot import Snapshot, load_snapshot
from torchmdx.dynamics.vibrations import lightest_hydrogen
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.runtime.device_guard import methods_on_own_device
from torchmdx.runtime.thread_lock import ThreadLock, one_thread_at_a_time
from torchmdx.step.captured_step import CapturedStep
from torchmdx.structures.system import Batch, System


@one_thread_at_a_time("run", "_next", "restore", "set_temperature", "set_velocities", "snapshot")
@methods_on_own_device("__init__", "run", "_next", "restore", "set_temperature", "set_velocities", "snapshot")
class Dynamics:
    """Molecular dynamics of a structure, of many copies of one, or of many different structures at once.

    Example::

        dynamics = Dynamics(potential, System.from_ase(atoms), integrator="langevin", timestep=0.5, temperature=300)
        dynamics.run(100)
        for snapshot in dynamics.snapshots(200, every=20):
            print(snapshot.step, snapshot.energy, snapshot.temperature)

    On a GPU, integrator and evaluation of `steps_per_replay` steps are one CUDA graph. The host launches replays and
    waits for snapshots only. On a CPU the same equations are a loop in Python around a captured step. A neighbour list
    that is too small ends nothing: the step is not taken, the list grows, and the step is repeated. If an evaluation is
    not finite, or an ensemble disagrees, the error of the captured step is raised and the state is that of the step
    before. Structures of a batch move independently of each other, and as they would alone, within rounding.

    Args:
        integrator: "verlet" (constant energy), "langevin" or "bussi" (constant temperature), or an object of
            `torchmdx.dynamics.integrators` with its parameters.
        timestep: fs; with a fast potential that of the inner steps, which all numbers of steps count.
        temperature: K, one for all structures or one for each: of the thermostat and of initial velocities.
        seed: One for each structure, or one for all, from which each structure gets its own (`motion.seeds`): runs with
            other seeds share no random numbers. These are functions of seed, step and atom: a run with the same seed on
            the same machine is the same to the bit, whatever `steps_per_replay` is.
        velocities: Initial ones [N,3] Å/fs; None draws them. Except with "langevin", a drift of the centre of mass
            stays, and is not counted in temperatures.
        masses: [N] amu; None takes those of the elements.
        hydrogen_mass: amu; the difference is taken from the bonded atoms, which allows a longer timestep. Given
            velocities are those of the masses before, and are scaled so that their temperature stays.
        frozen: Indices or a mask of atoms that do not move.
        barostat: `torchmdx.dynamics.barostat.CellRescaling` for constant pressure, with cells periodic in all
            directions.
        restraints: Harmonic ones, of `torchmdx.dynamics.restraints`, with values for each structure: umbrella windows.
        steps_per_replay: None takes 20, fewer for more than 10,000 atoms.
        exchange_every: Steps between attempts to swap temperatures of replicas, by `TemperatureExchange`; None: never.
        exchange_on_device: On one GPU, decide them there, without waiting for the host; experimental.
        devices: GPUs, with a process and a share of the structures each; with a potential on the CPU, processes.
        fast: A cheap potential near `potential`, which takes the steps; `potential` is evaluated every `inner` steps
            only, and the difference of the forces corrects them (`torchmdx.dynamics.multiple_steps`). The outer step is
            inner x timestep; without `inner` the longest for which averages are right, 2 fs, or 4 fs with hydrogens of
            3 amu, beyond which there is a warning. Numbers of steps and intervals must be multiples of `inner`.
        max_force_difference: eV/Å: DisagreementError, with the state before, if the two forces on an atom differ more.
            None: if the correction of an outer step could give an atom at rest more than 3/2 k T.
        small_steps: Take `inner` steps with `potential` alone instead of such an outer step, which biases averages
            a little; `num_small_blocks` counts them.
        skin, precision, max_force_spread, uncertainty, max_uncertainty, mode: As for CapturedStep.
    """

    def __init__(
        self,
        potential: Potential | Ensemble,
        structures: System | Batch | Sequence[System],
        *,
        integrator: str | Integrator = "langevin",
        timestep: float = 0.5,
        temperature: Any = 300.0,
        seed: Any = 0,
        velocities: Any = None,
        masses: Any = None,
        hydrogen_mass: float | None = None,
        frozen: Sequence[int] | NDArray[Any] | None = None,
        barostat: CellRescaling | None = None,
        restraints: Sequence[Restraint] = (),
        exchange_every: int | None = None,
        exchange_on_device: bool = False,
        devices: int = 1,
        steps_per_replay: int | None = None,
        mode: str = "auto",
        skin: float = 0.0,
        precision: str | None = None,
        max_force_spread: float | None = None,
        uncertainty: bool = False,
        max_uncertainty: float | None = None,
        fast: Potential | None = None,
        inner: int | None = None,
        max_force_difference: float | None = None,
        small_steps: bool = False,
    ) -> None:
        require_replays(mode, potential.device, steps_per_replay)
        self.fast, self.has_uncertainty = fast, uncertainty or max_uncertainty is not None
        self.potential, self.lock, self.device = potential, ThreadLock(), potential.device
        self.batch, chosen = Batch.of(structures).to("cpu", torch.float64).clone(), integrator_of(integrator)
        step = checked_timestep(timestep)
        temperatures = checked_temperatures(temperature, self.batch.num_systems, zero=chosen.constant_energy)
        particles, start = particles_of(self.batch, masses, frozen, hydrogen_mass, velocities, chosen.keeps_momentum)
        terms = RestraintTerms.of(restraints, particles, self.batch.positions.numpy())
        if barostat is not None:
            checked_barostat(barostat, self.batch, particles, terms, chosen.constant_energy, exchange_every is not None)
        mass = lightest_hydrogen(self.batch.atomic_numbers, particles.masses, ~particles.mobile)
        multiple = multiple_steps_of(fast, inner, max_force_difference, small_steps, exchange_every, step, mass)
        given = (particles.tied(terms.in_place()), temperatures, checked_seeds(seed, self.batch.num_systems))
        motion = Motion(chosen, step, *given, terms if len(terms) else None, barostat, multiple)
        self.exchange = exchange_of(exchange_every, self.batch, motion)
        start = motion.draw_velocities() if start is None else start * particles.mobile[:, None]
        settings: dict[str, Any] = dict(skin=skin, precision=precision, max_force_spread=max_force_spread)
        settings |= dict(uncertainty=uncertainty, max_uncertainty=max_uncertainty)
        warn_of_priors([potential] if fast is None else [potential, fast], self.batch)
        if devices == 1:
            self.step = CapturedStep(potential, self.batch, mode="eager", stress=barostat is not None, **settings)
            self.fast_step = None if fast is None else step_of_fast(fast, self.step, self.batch)
            shared = (self.step, self.fast_step, self.batch, motion, start, mode, steps_per_replay)
            self.loop = make_loop(*shared, self.exchange if exchange_on_device else None)
        else:
            names = checked_devices(devices, self.device, self.batch.num_systems)
            settings |= dict(steps_per_replay=steps_per_replay, mode=mode, max_force_difference=max_force_difference)
            settings |= dict(fast=fast, inner=motion.inner if multiple else None, small_steps=small_steps)
            processes = (potential, self.batch, motion, start, names, restraints, settings, self.exchange)
            self.loop = make_process_loop(type(self), *processes)

    def run(self, num_steps: int) -> Snapshot:
        """Takes this many steps; returns the state after them."""
        if num_steps < 0:
            raise ValueError(f"num_steps must be >= 0, got {num_steps}")
        *_, found = self.snapshots(num_steps, every=self.num_steps + max(num_steps, self.motion.inner))
        return found

    def snapshots(
        self, num_steps: int, every: int | Sequence[int], *, interrupted: Callable[[], bool] = lambda: False
    ) -> Iterator[Snapshot]:
        """Takes `num_steps` steps; yields the state at steps that are multiples of `every`, and after the last one.

        On a GPU the run is ahead of what is yielded, by one interval: if the iteration ends early, `num_steps` says
        where the run is. Raises NonFiniteError, SpreadError, DisagreementError and OutOfDeviceMemory, after which the
        run can continue.

        Args:
            every: One interval or several.
            interrupted: On a CPU called before each step; if it returns true, the state there is yielded as the last.
        """
        if num_steps < 0:
            raise ValueError(f"num_steps must be >= 0, got {num_steps}")
        intervals = [every] if isinstance(every, int) else list(every)
        if not intervals or min(intervals) < 1:
            raise ValueError(f"every must be >= 1 step, got {every}")
        for name, steps in (("num_steps", num_steps), *(("every", interval) for interval in intervals)):
            require_multiple(name, steps, self.motion.inner)
        start, end = self.num_steps, self.num_steps + num_steps
        if self.exchange is None or self.loop.exchanges:
            return self._between(start, end, intervals, interrupted)
        return self._exchanging(self.exchange, start, end, intervals, interrupted)

    def _between(
        self, start: int, end: int, intervals: list[int], interrupted: Callable[[], bool]
    ) -> Iterator[Snapshot]:
        found: Iterator[Snapshot] = self.loop.snapshots(stops(start, end, intervals), interrupted)
        return iter(lambda: self._next(found), None)

    def _exchanging(
        self,
        exchange: TemperatureExchange,
        start: int,
        end: int,
        intervals: list[int],
        interrupted: Callable[[], bool],
    ) -> Iterator[Snapshot]:
        """As `_between`, with attempts to exchange; the state at such a step is that after the attempt."""
        while True:
            target = min(end, (start // exchange.every + 1) * exchange.every)
            reached = None
            for snapshot in self._between(start, target, intervals, interrupted):
                if snapshot.step == target:
                    reached = snapshot
                else:
                    yield snapshot
            if reached is None:
                return  # interrupted
            if target % exchange.every == 0 and target > start:
                temperatures, velocities = exchange.attempt(reached)
                self.set_velocities(velocities)
                self.set_temperature(temperatures)
                reached = self.snapshot()
            if target == end or any(target % interval == 0 for interval in intervals):
                yield reached
            if target == end:
                return
            start = target

    def _next(self, snapshots: Iterator[Snapshot]) -> Any:
        """The next snapshot, None after the last."""
        return next(snapshots, None)

    @property
    def is_ensemble(self) -> bool:
        return isinstance(self.potential, Ensemble)

    @property
    def num_steps(self) -> int:
        """Steps taken so far. Waits for a GPU."""
        return int(self.loop.num_steps)

    @property
    def motion(self) -> Motion:
        """Integrator, timestep, particles, temperatures and seeds."""
        found: Motion = self.loop.motion
        return found

    @property
    def num_recoveries(self) -> int:
        """How often the neighbour list had to grow."""
        return int(self.loop.num_recoveries)

    @property
    def num_small_blocks(self) -> int:
        """How often `inner` steps were taken with the potential alone (`small_steps`)."""
        return int(self.loop.num_small_blocks)

    @property
    def why(self) -> str:
        """How the steps run, and why so."""
        return str(self.loop.why)

    def close(self) -> None:
        """Ends the processes of several devices, as the end of the program does; the dynamics is of no use then."""
        self.loop.close()

    def snapshot(self) -> Snapshot:
        """The current state. Waits for a GPU."""
        found: Snapshot = self.loop.snapshot()
        return found

    def restore(self, state: Snapshot | str | Path) -> None:
        """Continues from a snapshot, or from the file of one, instead of the current state.

        With a dynamics made as the first one, and without a skin, the continuation is the same to the bit.

        Raises:
            ValueError: For a snapshot of other structures or another timestep.
        """
        found = state if isinstance(state, Snapshot) else load_snapshot(state, self.motion.particles)
        if found.positions.shape != (self.batch.num_atoms, 3) or len(found.energy) != self.batch.num_systems:
            raise ValueError(
                f"a snapshot must have {self.batch.num_atoms} atoms in {self.batch.num_systems} structures, "
                f"got {len(found.positions)} in {len(found.energy)}"
            )
        if found.timestep != self.motion.timestep:
            raise ValueError(f"a snapshot must have a timestep of {self.motion.timestep} fs, got {found.timestep}")
        require_multiple("the step of a snapshot", found.step, self.motion.inner)
        self.loop.restore(found)
        self.loop.set_motion(self.motion.at(found.temperatures))

    def set_temperature(self, temperature: Any) -> None:
        """Sets the temperature of the thermostat, K: one for all structures or one for each. Velocities are kept."""
        zero = self.motion.integrator.constant_energy
        self.loop.set_motion(self.motion.at(checked_temperatures(temperature, self.batch.num_systems, zero=zero)))

    def set_velocities(self, velocities: Any) -> None:
        """Sets velocities [N,3] Å/fs; those of frozen atoms stay zero."""
        given = checked_velocities(velocities, self.batch.num_atoms)
        self.loop.set_velocities(given * self.motion.particles.mobile[:, None])
