"""The equations of motion of a batch, with everything in them that is constant."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from torchmdx.dynamics.barostat import CellRescaling
from torchmdx.dynamics.integrators import Bussi, Integrator, Langevin, kept
from torchmdx.dynamics.particles import Particles
from torchmdx.dynamics.restraint_terms import RestraintTerms
from torchmdx.structures.units import BOLTZMANN, FORCE_TO_ACCELERATION

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Motion:
    """Integrator, timestep fs, particles, temperature [S] K and seed [S] of each structure; restraints, barostat."""

    integrator: Integrator
    timestep: float
    particles: Particles
    temperatures: Floats
    seeds: NDArray[np.int64]
    restraints: RestraintTerms | None = None
    barostat: CellRescaling | None = None

    def at(self, temperatures: Floats) -> Motion:
        """The same at other temperatures."""
        return replace(self, temperatures=temperatures)

    def draw_velocities(self) -> Floats:
        """Velocities [N,3] Å/fs of the temperatures."""
        return self.particles.draw_velocities(self.temperatures, self.seeds)

    @property
    def is_langevin(self) -> bool:
        return isinstance(self.integrator, Langevin)

    @property
    def is_bussi(self) -> bool:
        return isinstance(self.integrator, Bussi)

    @property
    def half_kick(self) -> float:
        """h/2 in units that turn eV/Å/amu into Å/fs."""
        return 0.5 * self.timestep * FORCE_TO_ACCELERATION

    @property
    def thermal_kick(self) -> float:
        """What is added to velocities, times f/m, before kinetic energies are taken; see `Langevin`."""
        return self.half_kick if self.is_langevin else 0.0

    @property
    def kept(self) -> float:
        """c of the integrator's equations."""
        return kept(self.integrator, self.timestep)

    def thermal(self) -> Floats:
        """k T [S] in amu Å²/fs²."""
        return BOLTZMANN * FORCE_TO_ACCELERATION * self.temperatures

    def noise_scale(self) -> Floats:
        """sqrt((1 - c²) k T / m) of each atom [N], Å/fs."""
        thermal = self.thermal()[self.particles.system]
        return np.sqrt((1 - self.kept**2) * thermal * self.particles.inverse_masses())

    def first_counted(self) -> NDArray[np.int64]:
        """The first atom of each structure [S] that has degrees of freedom."""
        counted = np.flatnonzero(self.particles.counted)
        systems, first = np.unique(self.particles.system[counted], return_index=True)
        assert len(systems) == self.particles.num_systems
        return counted[first]


def rescaling(kinetic: Floats, thermal: Floats, kept: float, first: Floats, others: Floats) -> Floats:
    """α of `Bussi` for each structure [S]; 1 without kinetic energy.

    kinetic: K, thermal: k T, in the same unit. first: R₁. others: Σᵢ₌₂ Rᵢ².
    """
    moving = kinetic > 0
    ratio = (1 - kept) * thermal / (2 * np.where(moving, kinetic, 1.0))
    square = kept + ratio * (first * first + others) + 2 * first * np.sqrt(kept * ratio)
    positive = first * np.sqrt(ratio) + np.sqrt(kept) >= 0
    return np.where(moving, np.where(positive, 1.0, -1.0) * np.sqrt(np.maximum(square, 0.0)), 1.0)
