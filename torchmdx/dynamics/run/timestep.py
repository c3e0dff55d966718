"""Steps that are too long for the vibrations of hydrogens, in terms of the options of `torchmdx md`."""

from __future__ import annotations

from typing import Any, Protocol

from torchmdx.dynamics.vibrations import HEAVY, doubt_about_outer_step, lightest_hydrogen, longest_step, period


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
    mass = lightest_hydrogen(structure.atomic_numbers, structure.masses, structure.fixed)
    if mass is None or timestep <= longest_step(mass):
        return doubt_about_outer_step(timestep, inner, mass)
    heavy = f", or {(HEAVY / mass) ** 0.5:.1f} times that with --hydrogen-mass {HEAVY:g}" * (mass < HEAVY)
    return (
        f"a timestep of {timestep:g} fs is too long for hydrogens of {mass:.3f} amu, whose bonds vibrate with a period "
        f"of {period(mass):.0f} fs: the simulation will be wrong or blow up; --timestep should be at most "
        f"{longest_step(mass):.2f}{heavy}"
    )
