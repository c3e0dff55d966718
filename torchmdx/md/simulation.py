"""A structure in an OpenMM Context: forces, thermostat, barostat, and the numbers of a state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import openmm
from numpy.typing import NDArray
from openmm import unit

from torchmdx.md.log import Row, columns_of
from torchmdx.md.platform import make_context
from torchmdx.md.restore import restore
from torchmdx.md.settings import Dynamics, Evaluation
from torchmdx.md.structure import Structure
from torchmdx.openmm_force import PotentialForce, add_potential
from torchmdx.step.results import StepError
from torchmdx.units import AMU_SI, BOLTZMANN, KJ_PER_MOL, NANOMETER, PICOSECOND

BAROSTAT_EVERY = 25  # steps
GRAM_PER_CM3 = AMU_SI * 1e3 / 1e-24  # of 1 amu/Å³
MOST_NAMED = 5
HOTTEST = 1e5  # K; atoms this fast have flown apart, though every number may still be finite


class SimulationError(StepError):
    """A simulation that cannot go on; names the step, and the atoms where they are known."""


@dataclass(frozen=True)
class Checkpoint:
    """A state that a run can continue from: OpenMM's own bytes for the same machine, and a State for any other."""

    step: int
    exact: bytes
    state: openmm.State

    @property
    def portable(self) -> str:
        return str(openmm.XmlSerializer.serialize(self.state))


class Simulation:
    """One structure, one ensemble, one Context. Energies eV, positions Å."""

    def __init__(self, structure: Structure, dynamics: Dynamics, evaluation: Evaluation, seed: int) -> None:
        self.structure, self.dynamics = structure, dynamics
        self._seeds = _seeds(seed)
        self.system, self.force = make_system(structure, dynamics, evaluation, self._seeds["barostat"])
        self.context = make_context(
            self.system, lambda: make_integrator(dynamics, self._seeds["thermostat"]), evaluation
        )
        self.is_ensemble = self.force.is_ensemble
        self.degrees_of_freedom = 3 * structure.num_atoms - (3 if structure.num_atoms > 1 else 0)

    @property
    def platform(self) -> str:
        return str(self.context.getPlatform().getName())

    @property
    def log_columns(self) -> tuple[str, ...]:
        return columns_of(periodic=self.structure.cell is not None, ensemble=self.is_ensemble)

    @property
    def current_step(self) -> int:
        return int(self.context.getStepCount())

    def start(self, *, minimize: bool) -> None:
        """Puts atoms and box where the structure has them, or in a minimum near there, and draws velocities."""
        if self.structure.cell is not None:
            self.context.setPeriodicBoxVectors(*self.structure.cell / NANOMETER)
        self.context.setPositions(self.structure.positions / NANOMETER)
        if minimize:
            before, after = self.minimize()
            print(f"minimized: {before:.6f} -> {after:.6f} eV")
        self.draw_velocities()

    def minimize(self, most_iterations: int = 0) -> tuple[float, float]:
        """Moves atoms to a minimum of the energy (OpenMM's L-BFGS); the energies before and after, eV.

        most_iterations: 0 for as many as it takes.
        """
        with self._guarded():
            before = self.measure().potential
            openmm.LocalEnergyMinimizer.minimize(self.context, maxIterations=most_iterations)
            return before, self.measure().potential

    def draw_velocities(self) -> None:
        """Maxwell-Boltzmann velocities at the temperature, without motion of the centre of mass.

        Without motion of the centre of mass the mean kinetic energy is that of 3N - 3 degrees of freedom.
        """
        with self._guarded():
            self.context.setVelocitiesToTemperature(self.dynamics.temperature, self._seeds["velocities"])
        if self.structure.num_atoms > 1:
            state = self.context.getState(velocities=True)
            velocities = state.getVelocities(asNumpy=True)._value
            self.context.setVelocities(velocities - np.average(velocities, axis=0, weights=self.structure.masses))

    def step(self, num_steps: int) -> None:
        """Integrates. Raises SimulationError that says what went wrong and at which step."""
        with self._guarded():
            self.context.getIntegrator().step(num_steps)

    def measure(self) -> Row:
        """The row of the log for this moment, without speed. Raises SimulationError for a state that is not sane."""
        with self._guarded():
            # Without the forces, their spread would be that of an evaluation before.
            state = self.context.getState(energy=True, forces=self.is_ensemble)
        potential, kinetic = (
            KJ_PER_MOL * energy.value_in_unit(unit.kilojoule_per_mole)
            for energy in (state.getPotentialEnergy(), state.getKineticEnergy())
        )
        temperature = 2 * kinetic / (self.degrees_of_freedom * BOLTZMANN)
        self._require_sane(potential, temperature)
        volume = density = None
        if self.structure.cell is not None:
            volume = state.getPeriodicBoxVolume().value_in_unit(unit.angstrom**3)
            density = float(self.structure.masses.sum()) / volume * GRAM_PER_CM3
        spread = self.force.spread
        return Row(
            step=self.current_step,
            time=state.getTime().value_in_unit(unit.picosecond),
            potential=potential,
            kinetic=kinetic,
            temperature=temperature,
            volume=volume,
            density=density,
            spread=None if spread is None else (spread.energy, float(spread.forces.max())),
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

    def checkpoint(self) -> Checkpoint:
        """The present state. Raises SimulationError if it is not finite."""
        with self._guarded():
            state = self.context.getState(positions=True, velocities=True, parameters=True, integratorParameters=True)
            self._require_finite("positions", state.getPositions(asNumpy=True)._value)
            self._require_finite("velocities", state.getVelocities(asNumpy=True)._value)
            return Checkpoint(self.current_step, self.context.createCheckpoint(), state)

    def restore(self, exact: bytes | None, portable: str | None) -> str | None:
        """Continues from a checkpoint; a line on why the exact one could not be used, or None.

        Raises ValueError when neither fits.
        """
        return restore(self.context, exact, portable)

    def _require_finite(self, what: str, values: NDArray[np.float64]) -> None:
        bad = np.flatnonzero(~np.isfinite(values).all(1))
        if len(bad):
            named = ", ".join(str(index) for index in bad[:MOST_NAMED])
            more = f" and {len(bad) - MOST_NAMED} more" if len(bad) > MOST_NAMED else ""
            raise SimulationError(f"step {self.current_step}: {what} of atoms {named}{more} are not finite")

    def _require_sane(self, potential: float, temperature: float) -> None:
        if not (np.isfinite(potential) and np.isfinite(temperature)):
            self.geometry()  # names the atoms, if their positions are the reason
            raise SimulationError(
                f"step {self.current_step}: energies must be finite, got {potential} eV at {temperature} K"
            )
        if temperature > max(HOTTEST, 10 * self.dynamics.temperature):
            velocities = self.context.getState(velocities=True).getVelocities(asNumpy=True)._value
            fastest = int(np.linalg.norm(velocities, axis=1).argmax())
            raise SimulationError(
                f"step {self.current_step}: the structure has blown up, to {temperature:.3g} K; the fastest is atom "
                f"{fastest}. A smaller --timestep may help, or --minimize"
            )

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """OpenMM passes on only the text of what forces raise: put the step before it."""
        try:
            yield
        except openmm.OpenMMException as error:
            raise SimulationError(f"step {self.current_step}: {error}") from error


def make_system(
    structure: Structure, dynamics: Dynamics, evaluation: Evaluation, seed: int
) -> tuple[openmm.System, PotentialForce]:
    """The atoms, the potential, and what the ensemble needs. seed: of the barostat.

    Nothing bonds the atoms for OpenMM, so the barostat scales each on its own rather than rigid molecules.
    """
    system = openmm.System()
    for mass in structure.masses:
        system.addParticle(mass)
    if structure.cell is not None:
        system.setDefaultPeriodicBoxVectors(*structure.cell / NANOMETER)
    force = add_potential(
        system,
        structure.topology,
        evaluation.potential,
        charge=structure.charge,
        transport=evaluation.transport,
        precision=evaluation.precision,
        device=evaluation.device,
        skin=evaluation.skin,
        audit_every=evaluation.audit_every,
        max_force_spread=evaluation.max_force_spread,
        spread_file=evaluation.spread_file,
        periodic=structure.cell is not None,
    )
    if dynamics.ensemble != "nve" and structure.num_atoms > 1:
        system.addForce(openmm.CMMotionRemover())  # the thermostat would let a molecule diffuse away
    if dynamics.pressure is not None:
        barostat = _barostat(dynamics, dynamics.pressure)
        barostat.setRandomNumberSeed(seed)
        system.addForce(barostat)
    return system, force


def make_integrator(dynamics: Dynamics, seed: int) -> openmm.Integrator:
    """Verlet for NVE, Langevin (BAOAB-like "middle" scheme) otherwise."""
    timestep = dynamics.timestep / PICOSECOND
    if dynamics.friction is None:
        return openmm.VerletIntegrator(timestep)
    integrator = openmm.LangevinMiddleIntegrator(dynamics.temperature, dynamics.friction, timestep)
    integrator.setRandomNumberSeed(seed)
    return integrator


def _barostat(dynamics: Dynamics, pressure: float) -> openmm.Force:
    if dynamics.barostat == "anisotropic":
        pressures = openmm.Vec3(pressure, pressure, pressure) * unit.bar
        return openmm.MonteCarloAnisotropicBarostat(
            pressures, dynamics.temperature * unit.kelvin, True, True, True, BAROSTAT_EVERY
        )
    return openmm.MonteCarloBarostat(pressure * unit.bar, dynamics.temperature * unit.kelvin, BAROSTAT_EVERY)


def _seeds(seed: int) -> dict[str, int]:
    """Seeds of independent streams; never 0, which asks OpenMM for one of its own."""
    words = np.random.SeedSequence(seed).generate_state(3)
    return {
        name: int(word) % (2**31 - 1) + 1
        for name, word in zip(("velocities", "thermostat", "barostat"), words, strict=True)
    }
