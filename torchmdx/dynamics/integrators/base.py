"""What an integrator states of itself, and the steps that it makes on the host and on a GPU.

Symbols of all integrators: x positions, v velocities, f forces, m masses, h timestep, ξ standard normal numbers,
T temperature, k the Boltzmann constant. One evaluation of the potential per step; positions and velocities belong to
the same time.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from torchmdx.dynamics.device_state import DeviceState
    from torchmdx.dynamics.motion import Motion

Floats = NDArray[np.float64]


class HostStep(Protocol):
    """A step in NumPy, for the constants of a `Motion`. Positions Å, velocities Å/fs, forces eV/Å, all [N,3]."""

    def move(self, number: int, positions: Floats, velocities: Floats, forces: Floats) -> tuple[Floats, Floats]:
        """Before the evaluation of step `number`: its positions, and velocities before their last half kick."""

    def complete(self, number: int, velocities: Floats, forces: Floats) -> Floats:
        """After the evaluation: the velocities of step `number`, from those of `move` and the new forces."""


class DeviceStep(Protocol):
    """The same step as launches on the tensors of a `DeviceState`, which can be captured: nothing reads the host.

    Between the two, the step is committed (velocities get their last half kick), or the run halts (`control[1]`), and
    neither changes the state of a run that has halted.
    """

    def launch_move(self, moved: Tensor) -> None:
        """Writes trial positions to `moved` [N,3], and trial velocities to `state.faster`.

        Under a barostat (`state.barostat`) lengths are multiplied by `state.scale` [S], and velocities divided.
        """

    def launch_complete(self) -> None:
        """Changes the committed velocities, if the integrator does so after their last half kick."""


class Integrator(ABC):
    """The parameters of an integrator, as a frozen dataclass; all else follows from them and a `Motion`.

    Attributes:
        name: For `Dynamics(integrator=name)` and `torchmdx md --thermostat name`, with the defaults of the parameters.
        constant_energy: Whether it has no thermostat.
        keeps_momentum: Whether the momentum of a structure without frozen atoms is constant, so that it has three
            degrees of freedom less (`Particles.held`).
        kinetic_after_kick: Whether kinetic energies are taken after another half kick (see `Langevin`).
        one_launch: Its number in the kernel that takes whole steps of few atoms (`one_launch_motion.cuh`); None: not
            there.
    """

    name: ClassVar[str]
    constant_energy: ClassVar[bool] = False
    keeps_momentum: ClassVar[bool] = True
    kinetic_after_kick: ClassVar[bool] = False
    one_launch: ClassVar[int | None] = None

    def kept(self, timestep: float) -> float:
        """The part of velocities, or of kinetic energies, that a step keeps: c of the equations. timestep: fs."""
        return 1.0

    @abstractmethod
    def on_host(self, motion: Motion) -> HostStep:
        """The step in NumPy; made again when temperatures change."""

    def on_device(self, state: DeviceState) -> DeviceStep:
        """The step on a GPU; without one, runs on a GPU take the step on the host."""
        raise NotImplementedError(f"the integrator {self!r} has no step on a GPU")

    @property
    def has_device_step(self) -> bool:
        return type(self).on_device is not Integrator.on_device


def require_positive(name: str, value: float, unit: str) -> None:
    """Raises ValueError for a parameter that is not > 0 and finite."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be > 0 {unit} and finite, got {value}")
