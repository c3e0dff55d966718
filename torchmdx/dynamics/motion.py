"""The equations of motion of a batch, with everything in them that is constant."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from torchmdx.dynamics.barostat import CellRescaling, volumes
from torchmdx.dynamics.integrators.base import Integrator
from torchmdx.dynamics.multiple_steps import MultipleSteps
from torchmdx.dynamics.particles import Particles
from torchmdx.dynamics.random_numbers import Noise
from torchmdx.dynamics.restraint_terms import RestraintTerms
from torchmdx.structures.units import BOLTZMANN, FORCE_TO_ACCELERATION

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Motion:
    """Integrator, timestep fs, particles, temperature [S] K and seed [S] of each structure; restraints, barostat.

    Attributes:
        timestep: Of the integrator; with multiple time steps that of the inner ones.
    """

    integrator: Integrator
    timestep: float
    particles: Particles
    temperatures: Floats
    seeds: NDArray[np.int64]
    restraints: RestraintTerms | None = None
    barostat: CellRescaling | None = None
    multiple_steps: MultipleSteps | None = None

    @property
    def inner(self) -> int:
        """Steps between evaluations of the full potential."""
        return 1 if self.multiple_steps is None else self.multiple_steps.inner

    def at(self, temperatures: Floats) -> Motion:
        """The same at other temperatures."""
        return replace(self, temperatures=temperatures)

    def draw_velocities(self) -> Floats:
        """Velocities [N,3] Å/fs of the temperatures."""
        return self.particles.draw_velocities(self.temperatures, self.seeds)

    @property
    def half_kick(self) -> float:
        """h/2 in units that turn eV/Å/amu into Å/fs."""
        return 0.5 * self.timestep * FORCE_TO_ACCELERATION

    @property
    def thermal_kick(self) -> float:
        """What is added to velocities, times f/m, before kinetic energies are taken; see `Langevin`."""
        return self.half_kick if self.integrator.kinetic_after_kick else 0.0

    @property
    def kept(self) -> float:
        """c of the integrator's equations."""
        return self.integrator.kept(self.timestep)

    def thermal(self) -> Floats:
        """k T [S] in amu Å²/fs²."""
        return BOLTZMANN * FORCE_TO_ACCELERATION * self.temperatures

    def kicks(self) -> Floats:
        """What half a timestep adds to velocities for each eV/Å [N,1], Å/fs; 0 for frozen atoms."""
        return self.half_kick * self.particles.inverse_masses()[:, None]

    def noise(self) -> Noise:
        """Standard normal numbers [N,3] of each step, for the thermostat."""
        return Noise(self.seeds[self.particles.system], self.particles.place)

    def outside(self, positions: Floats, cell: Floats, stress: Floats | None) -> tuple[Floats, Floats, Floats]:
        """Energies [S] eV and forces [N,3] eV/Å of restraints, and the virials [S] eV of all, NaN without a barostat.

        stress: Of the potential [S,3,3] eV/Å³, with a barostat.
        """
        energy, forces, virial = np.zeros(len(cell)), np.zeros_like(positions), np.full(len(cell), np.nan)
        if self.barostat is not None and stress is not None:
            virial = -volumes(cell) * np.trace(stress, axis1=1, axis2=2)
        if self.restraints is not None:
            energy, forces, inner = self.restraints.evaluate(positions)
            virial = virial + inner
        return energy, forces, virial

    def first_counted(self) -> NDArray[np.int64]:
        """The first atom of each structure [S] that has degrees of freedom."""
        counted = np.flatnonzero(self.particles.counted)
        systems, first = np.unique(self.particles.system[counted], return_index=True)
        assert len(systems) == self.particles.num_systems
        return counted[first]
