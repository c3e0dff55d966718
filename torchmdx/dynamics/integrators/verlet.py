"""Velocity Verlet: constant energy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from torchmdx.dynamics.integrators.base import DeviceStep, Floats, HostStep, Integrator

if TYPE_CHECKING:
    from torchmdx.dynamics.device_state import DeviceState
    from torchmdx.dynamics.motion import Motion


@dataclass(frozen=True)
class VelocityVerlet(Integrator):
    """Constant energy (NVE).

    ::

        v ← v + h/2 f(x)/m
        x ← x + h v
        v ← v + h/2 f(x)/m

    The energy error is of second order in h, and does not drift as long as h is well below the fastest period.
    """

    name = "verlet"
    constant_energy = True
    one_launch = 0

    def on_host(self, motion: Motion) -> HostStep:
        return HostVerlet(motion)

    def on_device(self, state: DeviceState) -> DeviceStep:
        return DeviceVerlet(state)


class HostVerlet:
    """The equations of `VelocityVerlet` in NumPy."""

    def __init__(self, motion: Motion) -> None:
        self.timestep, self.kicks = motion.timestep, motion.kicks()

    def move(self, number: int, positions: Floats, velocities: Floats, forces: Floats) -> tuple[Floats, Floats]:
        velocities = velocities + self.kicks * forces
        return positions + self.timestep * velocities, velocities

    def complete(self, number: int, velocities: Floats, forces: Floats) -> Floats:
        return velocities + self.kicks * forces


class DeviceVerlet:
    """The equations of `VelocityVerlet` on a GPU; the last half kick is part of committing a step."""

    def __init__(self, state: DeviceState) -> None:
        self.state = state

    def launch_move(self, moved: Tensor) -> None:
        from torchmdx.dynamics.kernels.motion import advance

        state = self.state
        advance[state.atom_blocks](
            state.positions, state.velocities, state.forces, moved, state.faster, state.inverse_masses, state.system,
            state.constants, state.scale, state.control, state.num_atoms, SCALED=state.barostat is not None,
            BLOCK=state.block_size, num_warps=4,
        )  # fmt: skip

    def launch_complete(self) -> None:
        """Nothing follows the last half kick."""
