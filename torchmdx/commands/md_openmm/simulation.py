"""A structure in an OpenMM Context: forces, thermostat, barostat, and measurements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import openmm
from numpy.typing import NDArray
from openmm import unit

from torchmdx.commands.md_openmm.checkpoint import Checkpoint
from torchmdx.commands.md_openmm.platform import make_context
from torchmdx.commands.md_openmm.structure import Structure
from torchmdx.dynamics.integrators import Langevin, VelocityVerlet
from torchmdx.dynamics.log import LogRow, columns_of
from torchmdx.dynamics.particles import Particles
from torchmdx.dynamics.run.outputs import Shape, is_unstable
from torchmdx.dynamics.run.recorded import density_of
from torchmdx.dynamics.run.settings import RunSettings
from torchmdx.openmm.add import add_potential
from torchmdx.openmm.multiple_steps import add_difference, multiple_step_integrator
from torchmdx.openmm.potential_force import PotentialForce
from torchmdx.step.results import StepError
from torchmdx.structures.system import Batch
from torchmdx.structures.units import KJ_PER_MOL, NANOMETER, PICOSECOND

BAROSTAT_EVERY = 25  # steps
FAST_GROUP, SLOW_GROUP = 0, 1  # of multiple time steps
MAX_NAMED = 5


class SimulationError(StepError):
    """A simulation that cannot continue; the message has the step and, if known, the atoms."""


class Simulation:
    """A structure in a Context with one thermodynamic ensemble. Energies eV, positions Å."""

    def __init__(self, structure: Structure, settings: RunSettings) -> None:
        """settings: with a seed."""
        assert settings.seed is not None
        self.structure, self.settings, self._seeds = structure, settings, _seeds(settings.seed)
        self.system, self.force = make_system(structure, settings, self._seeds["barostat"])
        self.context = make_context(
            self.system, lambda: make_integrator(settings, self._seeds["thermostat"]), settings.potential
        )
        self.is_ensemble = self.force.is_ensemble
        self.particles = particles_of(structure)

    @property
    def platform(self) -> str:
        return str(self.context.getPlatform().getName())

    @property
    def shape(self) -> Shape:
        """What its files hold."""
        periodic, uncertainty = self.structure.cell is not None, self.settings.potential.uncertainty
        columns = columns_of(periodic=periodic, ensemble=self.is_ensemble, uncertainty=uncertainty)
        return Shape(self.structure.num_atoms, periodic, columns)

    @property
    def current_step(self) -> int:
        """With multiple time steps in inner ones; OpenMM counts outer ones."""
        return int(self.context.getStepCount()) * self.settings.inner

    def start(self, *, minimize: bool, velocities: NDArray[np.float64] | None = None) -> None:
        """Sets positions and box from the structure, minimizes if asked, and sets or draws velocities.

        velocities [N,3] Å/fs: at step 0; None draws them.
        """
        if self.structure.cell is not None:
            self.context.setPeriodicBoxVectors(*self.structure.cell / NANOMETER)
        self.context.setPositions(self.structure.positions / NANOMETER)
        if minimize:
            before, after = self.minimize()
            print(f"minimized: {before:.6f} -> {after:.6f} eV")
        if velocities is None:
            self.draw_velocities()
        else:
            self.set_velocities(velocities)

    def minimize(self) -> tuple[float, float]:
        """Minimizes the energy with OpenMM's L-BFGS; returns the energies before and after, eV."""
        with self._guarded():
            before = self.measure().potential
            openmm.LocalEnergyMinimizer.minimize(self.context)
            return before, self.measure().potential

    def draw_velocities(self) -> None:
        """Draws Maxwell-Boltzmann velocities at the temperature, and removes the motion of the centre of mass.

        The mean kinetic energy is then that of 3N - 3 degrees of freedom. With fixed atoms the centre of mass may move.
        """
        with self._guarded():
            self.context.setVelocitiesToTemperature(self.settings.temperature, self._seeds["velocities"])
        velocities = self.context.getState(velocities=True).getVelocities(asNumpy=True)._value
        self.context.setVelocities(self.particles.at_rest(velocities))

    def set_velocities(self, velocities: NDArray[np.float64]) -> None:
        """Sets the velocities [N,3] Å/fs at the current step; those of fixed atoms are zero.

        OpenMM's integrators keep the velocities of half a timestep earlier, so they are moved back by that time.
        """
        with self._guarded():
            state = self.context.getState(forces=True)
        earlier = velocities * (PICOSECOND / NANOMETER) - self._half_kick(state)
        self.context.setVelocities(np.where(self.structure.fixed[:, None], 0.0, earlier))

    def step(self, num_steps: int) -> None:
        """Integrates. Raises SimulationError with the step and the reason."""
        with self._guarded():
            self.context.getIntegrator().step(num_steps // self.settings.inner)

    def measure(self) -> LogRow:
        """The log row of the current state, without speed. Raises SimulationError for an invalid state."""
        with self._guarded():
            # Requests forces, whose spread would otherwise be that of an earlier evaluation.
            state = self.context.getState(energy=True, velocities=True, forces=self.is_ensemble)
        velocities = NANOMETER / PICOSECOND * state.getVelocities(asNumpy=True)._value
        potential, kinetic = (
            KJ_PER_MOL * energy.value_in_unit(unit.kilojoule_per_mole)
            for energy in (state.getPotentialEnergy(), state.getKineticEnergy())
        )
        kinetic -= float(self.particles.drift_energy(velocities)[0])  # kept by Verlet; of the last kick by Langevin
        temperature = float(self.particles.temperature(np.array([kinetic]))[0])
        self._require_valid(potential, temperature)
        periodic = self.structure.cell is not None
        volume = state.getPeriodicBoxVolume().value_in_unit(unit.angstrom**3) if periodic else None
        spread, uncertainty = self.force.spread, self.force.uncertainty
        return LogRow(
            step=self.current_step,
            time=state.getTime().value_in_unit(unit.picosecond),
            potential=potential,
            kinetic=kinetic,
            temperature=temperature,
            volume=volume,
            density=density_of(float(self.structure.masses.sum()), volume),
            spread=None if spread is None else (spread.energy, float(spread.forces.max())),
            uncertainty=None if uncertainty is None else (uncertainty.energy, float(uncertainty.energies.max())),
        )

    def geometry(self) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        """Positions [N,3] Å, and cell [3,3] Å where periodic. Raises SimulationError if they are not finite."""
        with self._guarded():
            state = self.context.getState(positions=True)
        positions = NANOMETER * state.getPositions(asNumpy=True)._value
        self._require_finite("positions", positions)
        if self.structure.cell is None:
            return positions, None
        return positions, np.array(state.getPeriodicBoxVectors(asNumpy=True).value_in_unit(unit.angstrom))

    def velocities(self) -> NDArray[np.float64]:
        """Velocities [N,3] Å/fs at the time of the positions: half a timestep after those of OpenMM's integrators."""
        with self._guarded():
            state = self.context.getState(velocities=True, forces=True)
        found = state.getVelocities(asNumpy=True)._value + self._half_kick(state)
        return np.where(self.structure.fixed[:, None], 0.0, found * (NANOMETER / PICOSECOND))

    def _half_kick(self, state: openmm.State) -> NDArray[np.float64]:
        """What forces add to velocities [N,3] in half a timestep, nm/ps; 0 for integrators whose times are the same."""
        if self.settings.fast is not None:
            return np.zeros((self.structure.num_atoms, 3))
        forces = state.getForces(asNumpy=True)._value  # kJ/mol/nm
        found: NDArray[np.float64] = 0.5 * self.settings.timestep / PICOSECOND * forces / self.structure.masses[:, None]
        return found

    def checkpoint(self) -> Checkpoint:
        """The current state. Raises SimulationError if it is not finite."""
        with self._guarded():
            state = self.context.getState(positions=True, velocities=True, parameters=True, integratorParameters=True)
            self._require_finite("positions", state.getPositions(asNumpy=True)._value)
            self._require_finite("velocities", state.getVelocities(asNumpy=True)._value)
            return Checkpoint(self.current_step, self.context.createCheckpoint(), state)

    def _require_finite(self, what: str, values: NDArray[np.float64]) -> None:
        bad = np.flatnonzero(~np.isfinite(values).all(1))
        if len(bad):
            named = ", ".join(str(index) for index in bad[:MAX_NAMED])
            more = f" and {len(bad) - MAX_NAMED} more" if len(bad) > MAX_NAMED else ""
            raise SimulationError(f"step {self.current_step}: {what} of atoms {named}{more} are not finite")

    def _require_valid(self, potential: float, temperature: float) -> None:
        if not (np.isfinite(potential) and np.isfinite(temperature)):
            self.geometry()  # names the atoms, if their positions are the reason
            raise SimulationError(
                f"step {self.current_step}: energies must be finite, got {potential} eV at {temperature} K"
            )
        if is_unstable(temperature, self.settings.temperature):
            velocities = self.context.getState(velocities=True).getVelocities(asNumpy=True)._value
            fastest = int(np.linalg.norm(velocities, axis=1).argmax())
            raise SimulationError(
                f"step {self.current_step}: the simulation is unstable: temperature {temperature:.3g} K, fastest atom "
                f"{fastest}; try --minimize or a smaller --timestep"
            )

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Converts errors of OpenMM, which keep only the text of errors in forces, and adds the step."""
        try:
            yield
        except openmm.OpenMMException as error:
            raise SimulationError(f"step {self.current_step}: {error}") from error


def make_system(structure: Structure, settings: RunSettings, seed: int) -> tuple[openmm.System, PotentialForce]:
    """A system with the atoms, the potential, and the barostat if needed. seed: of the barostat.

    The system has no bonds, so the barostat scales atomic positions rather than those of rigid molecules.
    """
    system, chosen, fast = openmm.System(), settings.potential, settings.fast
    for mass in np.where(structure.fixed, 0.0, structure.masses):  # OpenMM does not move particles without mass
        system.addParticle(mass)
    if structure.cell is not None:
        system.setDefaultPeriodicBoxVectors(*structure.cell / NANOMETER)
    treatment: dict[str, Any] = dict(transport=chosen.transport, spread_file=chosen.spread_file)
    treatment |= chosen.doubts | chosen.treatment
    force = add_potential(
        system,
        structure.topology,
        chosen.potential if fast is None else fast.model,
        charge=structure.record.charge,
        precision=chosen.precision,
        device=chosen.device,
        skin=chosen.skin,
        audit_every=chosen.audit_every,
        periodic=structure.cell is not None,
        force_group=FAST_GROUP,
        **(treatment if fast is None else {"transport": chosen.transport}),
    )
    if fast is not None:
        force = add_difference(system, force, chosen.potential, force_group=SLOW_GROUP, **treatment)
    if settings.ensemble != "nve" and particles_of(structure).held.all():
        system.addForce(openmm.CMMotionRemover())  # the thermostat would let the centre of mass diffuse
    if settings.pressure is not None:
        barostat = _barostat(settings, settings.pressure)
        barostat.setRandomNumberSeed(seed)
        system.addForce(barostat)
    return system, force


def particles_of(structure: Structure) -> Particles:
    """The atoms and their degrees of freedom: CMMotionRemover keeps the momentum that a thermostat changes."""
    return Particles.of(Batch.of(structure.system), structure.masses, structure.fixed, momentum_kept=True)


def make_integrator(settings: RunSettings, seed: int) -> openmm.Integrator:
    """Verlet for NVE, Langevin (BAOAB-like "middle" scheme) for NVT."""
    timestep, chosen, groups = settings.timestep / PICOSECOND, settings.integrator, (FAST_GROUP, SLOW_GROUP)
    given = (settings.timestep, settings.inner)
    if isinstance(chosen, VelocityVerlet):
        if settings.fast is not None:
            return multiple_step_integrator(*given, groups=groups)
        return openmm.VerletIntegrator(timestep)
    assert isinstance(chosen, Langevin)  # others are refused with the options
    if settings.fast is not None:
        integrator = multiple_step_integrator(
            *given, temperature=settings.temperature, friction=chosen.friction, groups=groups
        )
    else:
        integrator = openmm.LangevinMiddleIntegrator(settings.temperature, chosen.friction, timestep)
    integrator.setRandomNumberSeed(seed)
    return integrator


def _barostat(settings: RunSettings, pressure: float) -> openmm.Force:
    every = max(1, round(BAROSTAT_EVERY / settings.inner))  # of what OpenMM counts, the outer steps
    if settings.barostat == "anisotropic":
        pressures = openmm.Vec3(pressure, pressure, pressure) * unit.bar
        return openmm.MonteCarloAnisotropicBarostat(
            pressures, settings.temperature * unit.kelvin, True, True, True, every
        )
    return openmm.MonteCarloBarostat(pressure * unit.bar, settings.temperature * unit.kelvin, every)


def _seeds(seed: int) -> dict[str, int]:
    """Seeds of independent streams; never 0, for which OpenMM chooses one."""
    words = np.random.SeedSequence(seed).generate_state(3)
    return {
        name: int(word) % (2**31 - 1) + 1
        for name, word in zip(("velocities", "thermostat", "barostat"), words, strict=True)
    }
