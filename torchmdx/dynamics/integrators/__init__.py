"""Integrators: a file for each, with its equations, constants, degrees of freedom and steps."""

from torchmdx.dynamics.integrators.base import DeviceStep, HostStep, Integrator
from torchmdx.dynamics.integrators.bussi import Bussi
from torchmdx.dynamics.integrators.langevin import Langevin
from torchmdx.dynamics.integrators.table import KINDS, integrator_of, register_integrator
from torchmdx.dynamics.integrators.verlet import VelocityVerlet

__all__ = [
    "KINDS",
    "Bussi",
    "DeviceStep",
    "HostStep",
    "Integrator",
    "Langevin",
    "VelocityVerlet",
    "integrator_of",
    "register_integrator",
]
