"""The longest timestep for the vibrations of hydrogens, and the longest outer step of multiple time steps."""

from __future__ import annotations

from typing import Any, Protocol

# The period of a stretching vibration of hydrogen: 10 fs at 1.008 amu; it grows with the square root of the mass.
PERIOD, PERIOD_MASS = 10.0, 1.008  # fs, amu
STEPS_A_PERIOD = 8
# Kicks at half a period resonate with the vibration; near it, errors of the fast potential are amplified.
OUTER_STEPS_A_PERIOD = 4
HEAVY = 3.0  # amu, of hydrogens that leave a methyl carbon twice as much


class StructureThatMoves(Protocol):
    """A structure with atomic numbers, masses amu, and which atoms do not move [N]."""

    @property
    def atomic_numbers(self) -> Any: ...
    @property
    def masses(self) -> Any: ...
    @property
    def fixed(self) -> Any: ...


def doubt_about_timestep(structure: StructureThatMoves, timestep: float, inner: int = 1) -> str | None:
    """Why a timestep, fs, is too long for the lightest hydrogen that moves; None if it is not.

    inner: steps between evaluations of the full potential, if a fast one takes the others.
    """
    light = (structure.atomic_numbers == 1) & ~structure.fixed
    if not light.any():
        return None
    mass = float(structure.masses[light].min())
    period = PERIOD * (mass / PERIOD_MASS) ** 0.5
    longest, outer = period / STEPS_A_PERIOD, period / OUTER_STEPS_A_PERIOD
    heavy = f", or {(HEAVY / mass) ** 0.5:.1f} times that with --hydrogen-mass {HEAVY:g}" * (mass < HEAVY)
    bonds = f"hydrogens of {mass:.3f} amu, whose bonds vibrate with a period of {period:.0f} fs"
    if timestep > longest:
        return (
            f"a timestep of {timestep:g} fs is too long for {bonds}: the simulation will be wrong or blow up; "
            f"--timestep should be at most {longest:.2f}{heavy}"
        )
    if inner > 1 and inner * timestep > outer:
        return (
            f"an outer step of {inner} x {timestep:g} fs is too long for {bonds}: kicks near half of it resonate, and "
            f"averages will be wrong; --inner x --timestep should be at most {outer:.2f} fs{heavy}"
        )
    return None
