"""Integrators: their equations, and the constants that one step needs.

x: positions, v: velocities, f: forces, m: masses, h: timestep, ξ: standard normal numbers, T: temperature, k: the
Boltzmann constant. One evaluation of the potential per step; positions and velocities belong to the same time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchmdx.structures.units import PICOSECOND


@dataclass(frozen=True)
class VelocityVerlet:
    """Constant energy (NVE).

        v ← v + h/2 f(x)/m
        x ← x + h v
        v ← v + h/2 f(x)/m

    The energy error is of second order in h, and does not drift as long as h is well below the fastest period.
    """

    name = "verlet"


@dataclass(frozen=True)
class Langevin:
    """Constant temperature (NVT): Langevin dynamics, split as BAOAB (Leimkuhler and Matthews, 2013).

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

    def __post_init__(self) -> None:
        _require_positive("friction", self.friction, "1/ps")


@dataclass(frozen=True)
class Bussi:
    """Constant temperature (NVT): velocity Verlet and stochastic velocity rescaling (Bussi and others, 2007).

        v ← α v
        α² = c + (1 - c) k T / (2 K) (R₁² + Σᵢ₌₂ Rᵢ²) + 2 R₁ sqrt(c (1 - c) k T / (2 K)),  c = exp(-h/τ)
        sign(α) = sign(R₁ + sqrt(2 K c / ((1 - c) k T)))

    K: kinetic energy of a structure. R: one standard normal number for each of its degrees of freedom. The motion is
    disturbed less than by Langevin dynamics. Where nothing outside acts on a structure, so without frozen atoms and
    restraints on positions, v and K are relative to the centre of mass, which keeps its velocity. relaxation: τ, ps.
    """

    relaxation: float = 0.1
    name = "bussi"

    def __post_init__(self) -> None:
        _require_positive("relaxation", self.relaxation, "ps")


Integrator = VelocityVerlet | Langevin | Bussi
KINDS: dict[str, type[VelocityVerlet] | type[Langevin] | type[Bussi]] = {
    kind.name: kind for kind in (VelocityVerlet, Langevin, Bussi)
}


def integrator_of(given: str | Integrator) -> Integrator:
    """The integrator itself, or the one of a name with its defaults. Raises ValueError, TypeError."""
    if isinstance(given, str):
        if given not in KINDS:
            raise ValueError(f"integrator must be one of {', '.join(KINDS)}, got {given!r}")
        return KINDS[given]()
    if not isinstance(given, tuple(KINDS.values())):
        raise TypeError(f"integrator must be a name or one of torchmdx.dynamics.integrators, got {given!r}")
    return given


def keeps_momentum(integrator: Integrator) -> bool:
    """Whether the momentum of a structure without frozen atoms stays constant."""
    return not isinstance(integrator, Langevin)


def kept(integrator: Integrator, timestep: float) -> float:
    """c of the equations: the part of velocities, or of kinetic energies, that a step keeps. timestep: fs."""
    if isinstance(integrator, Langevin):
        return math.exp(-integrator.friction * timestep / PICOSECOND)
    if isinstance(integrator, Bussi):
        return math.exp(-timestep / (integrator.relaxation * PICOSECOND))
    return 1.0


def _require_positive(name: str, value: float, unit: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be > 0 {unit} and finite, got {value}")
