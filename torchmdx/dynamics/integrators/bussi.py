"""Stochastic velocity rescaling: constant temperature."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchmdx.dynamics.integrators.base import DeviceStep, Floats, HostStep, Integrator, require_positive
from torchmdx.dynamics.integrators.verlet import DeviceVerlet, HostVerlet
from torchmdx.structures.units import FORCE_TO_ACCELERATION, PICOSECOND

if TYPE_CHECKING:
    from torchmdx.dynamics.device_state import DeviceState
    from torchmdx.dynamics.motion import Motion


@dataclass(frozen=True)
class Bussi(Integrator):
    """Constant temperature (NVT): velocity Verlet and stochastic velocity rescaling (Bussi and others, 2007).

    ::

        v ← α v
        α² = c + (1 - c) k T / (2 K) (R₁² + Σᵢ₌₂ Rᵢ²) + 2 R₁ sqrt(c (1 - c) k T / (2 K)),  c = exp(-h/τ)
        sign(α) = sign(R₁ + sqrt(2 K c / ((1 - c) k T)))

    K: kinetic energy of a structure. R: one standard normal number for each of its degrees of freedom. The motion is
    disturbed less than by Langevin dynamics. Where nothing outside acts on a structure, so without frozen atoms and
    restraints on positions, v and K are relative to the centre of mass, which keeps its velocity. relaxation: τ, ps.
    """

    relaxation: float = 0.1

    name = "bussi"
    one_launch = 2

    def __post_init__(self) -> None:
        require_positive("relaxation", self.relaxation, "ps")

    def kept(self, timestep: float) -> float:
        """c, of kinetic energies."""
        return math.exp(-timestep / (self.relaxation * PICOSECOND))

    def on_host(self, motion: Motion) -> HostStep:
        return HostBussi(motion)

    def on_device(self, state: DeviceState) -> DeviceStep:
        return DeviceBussi(state)


class HostBussi(HostVerlet):
    """The equations of `Bussi` in NumPy."""

    def __init__(self, motion: Motion) -> None:
        super().__init__(motion)
        self.motion, self.noise = motion, motion.noise()
        self.first, self.counted = motion.first_counted(), motion.particles.counted

    def complete(self, number: int, velocities: Floats, forces: Floats) -> Floats:
        velocities = super().complete(number, velocities, forces)
        return self.motion.particles.rescaled(velocities, self._alpha(velocities, number))

    def _alpha(self, velocities: Floats, number: int) -> Floats:
        """The factors [S] of a step."""
        motion, particles = self.motion, self.motion.particles
        noise = self.noise(number)
        first = noise[self.first, 0]
        squares = np.where(self.counted, (noise * noise).sum(-1), 0.0)
        others = np.bincount(particles.system, squares, particles.num_systems) - first * first
        kinetic = FORCE_TO_ACCELERATION * particles.kinetic_energy(velocities)
        return rescaling(kinetic, motion.thermal(), motion.kept, first, others)


def rescaling(kinetic: Floats, thermal: Floats, kept: float, first: Floats, others: Floats) -> Floats:
    """α of each structure [S]; 1 without kinetic energy.

    Args:
        kinetic: K, thermal: k T, in the same unit.
        first: R₁.
        others: Σᵢ₌₂ Rᵢ².
    """
    moving = kinetic > 0
    ratio = (1 - kept) * thermal / (2 * np.where(moving, kinetic, 1.0))
    square = kept + ratio * (first * first + others) + 2 * first * np.sqrt(kept * ratio)
    positive = first * np.sqrt(ratio) + np.sqrt(kept) >= 0
    return np.where(moving, np.where(positive, 1.0, -1.0) * np.sqrt(np.maximum(square, 0.0)), 1.0)


class DeviceBussi(DeviceVerlet):
    """The equations of `Bussi` on a GPU."""

    def launch_complete(self) -> None:
        from torchmdx.dynamics.kernels.bussi import rescale

        state = self.state
        rescale[(state.num_systems,)](
            state.velocities, state.masses, state.counted, state.held, state.starts, state.first, state.seeds,
            state.thermal, state.constants, state.control, BLOCK=state.rescale_block, num_warps=4,
        )  # fmt: skip
