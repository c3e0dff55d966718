"""The longest timestep for the vibrations of hydrogens."""

from __future__ import annotations

from typing import Any, Protocol

# The period of a stretching vibration of hydrogen: 10 fs at 1.008 amu; it grows with the square root of the mass.
PERIOD, PERIOD_MASS = 10.0, 1.008  # fs, amu
STEPS_A_PERIOD = 8
HEAVY = 3.0  # amu, of hydrogens that leave a methyl carbon twice as much


class StructureThatMoves(Protocol):
    """A structure with atomic numbers, masses amu, and which atoms do not move [N]."""

    @property
    def atomic_numbers(self) -> Any: ...
    @property
    def masses(self) -> Any: ...
    @property
    def fixed(self) -> Any: ...


def doubt_about_timestep(structure: StructureThatMoves, timestep: float) -> str | None:
    """Why a timestep, fs, is too long for the lightest hydrogen that moves; None if it is not."""
    light = (structure.atomic_numbers == 1) & ~structure.fixed
    if not light.any():
        return None
    mass = float(structure.masses[light].min())
    period = PERIOD * (mass / PERIOD_MASS) ** 0.5
    longest = period / STEPS_A_PERIOD
    if timestep <= longest:
        return None
    return (
        f"a timestep of {timestep:g} fs is too long for hydrogens of {mass:.3f} amu, whose bonds vibrate with a period "
        f"of {period:.0f} fs: the simulation will be wrong or blow up; --timestep should be at most {longest:.2f}"
        + f", or {(HEAVY / mass) ** 0.5:.1f} times that with --hydrogen-mass {HEAVY:g}"
        * (mass < HEAVY)
    )
