"""Langevin dynamics: constant temperature."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from torchmdx.dynamics.integrators.base import DeviceStep, Floats, HostStep, Integrator, require_positive
from torchmdx.structures.units import PICOSECOND

if TYPE_CHECKING:
    from torchmdx.dynamics.device_state import DeviceState
    from torchmdx.dynamics.motion import Motion


@dataclass(frozen=True)
class Langevin(Integrator):
    """Constant temperature (NVT): Langevin dynamics, split as BAOAB (Leimkuhler and Matthews, 2013).

    ::

        v ← v + h/2 f(x)/m                        B
        x ← x + h/2 v                             A
        v ← c v + sqrt((1 - c²) k T / m) ξ        O,  c = exp(-γ h)
        x ← x + h/2 v                             A
        v ← v + h/2 f(x)/m                        B

    Averages of positions have errors of fourth order in h in the limit of high friction, and none for harmonic forces.
    The motion of the centre of mass has the temperature too, so a molecule diffuses. friction: γ, 1/ps.

    Velocities at whole steps lack (ω h)²/4 of the kinetic energy of an oscillation of frequency ω. Kinetic energies,
    temperatures and pressures of snapshots, logs and the barostat are therefore of v + h/2 f(x)/m, which has none of
    that error for harmonic forces.
    """

    friction: float = 1.0

    name = "langevin"
    keeps_momentum = False
    kinetic_after_kick = True
    one_launch = 1

    def __post_init__(self) -> None:
        require_positive("friction", self.friction, "1/ps")

    def kept(self, timestep: float) -> float:
        """c, of velocities."""
        return math.exp(-self.friction * timestep / PICOSECOND)

    def on_host(self, motion: Motion) -> HostStep:
        return HostLangevin(motion)

    def on_device(self, state: DeviceState) -> DeviceStep:
        return DeviceLangevin(state)


class HostLangevin:
    """The equations of `Langevin` in NumPy."""

    def __init__(self, motion: Motion) -> None:
        self.timestep, self.kicks, self.kept, self.noise = motion.timestep, motion.kicks(), motion.kept, motion.noise()
        self.scale = noise_scale(motion)[:, None]

    def move(self, number: int, positions: Floats, velocities: Floats, forces: Floats) -> tuple[Floats, Floats]:
        before = velocities + self.kicks * forces
        after = self.kept * before + self.scale * self.noise(number)
        return positions + 0.5 * self.timestep * (before + after), after

    def complete(self, number: int, velocities: Floats, forces: Floats) -> Floats:
        return velocities + self.kicks * forces


def noise_scale(motion: Motion) -> Floats:
    """sqrt((1 - c²) k T / m) of each atom [N], Å/fs."""
    particles = motion.particles
    thermal = motion.thermal()[particles.system]
    return np.sqrt((1 - motion.kept**2) * thermal * particles.inverse_masses())


class DeviceLangevin:
    """The equations of `Langevin` on a GPU; the last half kick is part of committing a step."""

    def __init__(self, state: DeviceState) -> None:
        self.state = state

    def launch_move(self, moved: Tensor) -> None:
        from torchmdx.dynamics.kernels.langevin import advance_langevin

        state = self.state
        advance_langevin[state.atom_blocks](
            state.positions, state.velocities, state.forces, moved, state.faster, state.inverse_masses, state.system,
            state.place, state.seeds, state.thermal, state.constants, state.scale, state.control, state.num_atoms,
            SCALED=state.barostat is not None, BLOCK=state.block_size, num_warps=4,
        )  # fmt: skip

    def launch_complete(self) -> None:
        """Nothing follows the last half kick."""
