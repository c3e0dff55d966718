"""How long steps may be for the vibrations of hydrogens: single steps, and outer steps of multiple time steps.

The outer limit is measured (`benchmarks/multiple_steps_physics.py`, `multiple_steps_modes.py`): up to it averages of a
molecule with a distilled fast potential, and of vibrations, agree with those of single steps.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The period of a stretching vibration of hydrogen: 10 fs at 1.008 amu; it grows with the square root of the mass.
PERIOD, PERIOD_MASS = 10.0, 1.008  # fs, amu
STEPS_A_PERIOD = 8
# Kicks at half a period resonate with the vibration; near it, errors of the fast potential are amplified. 2.3 fs, and
# 4.0 fs for hydrogens of 3 amu.
OUTER_STEPS_A_PERIOD = 4.3
HEAVY = 3.0  # amu, of hydrogens that leave a methyl carbon twice as much; with heavier ones other bonds are as fast


def lightest_hydrogen(atomic_numbers: Any, masses: Any, fixed: NDArray[np.bool_]) -> float | None:
    """The least mass, amu, of hydrogens that move; None without any. All of N atoms; fixed: which ones do not move."""
    light = (np.asarray(atomic_numbers) == 1) & ~fixed
    return float(np.asarray(masses)[light].min()) if light.any() else None


def period(mass: float) -> float:
    """Of a hydrogen of this mass, amu, in fs."""
    return PERIOD * math.sqrt(mass / PERIOD_MASS)


def longest_step(mass: float) -> float:
    """The longest single step for hydrogens of this mass, amu, in fs."""
    return period(mass) / STEPS_A_PERIOD


def longest_outer_step(mass: float | None) -> float:
    """The longest outer step for hydrogens of this mass, amu, in fs; None: without hydrogens, as with heavy ones."""
    return period(HEAVY if mass is None else min(mass, HEAVY)) / OUTER_STEPS_A_PERIOD


def recommended_inner(timestep: float, mass: float | None) -> int:
    """Inner steps of `timestep`, fs, in the longest outer step for hydrogens of this mass, amu; at least 1."""
    return max(1, math.floor(longest_outer_step(mass) / timestep + 1e-9))


def doubt_about_outer_step(timestep: float, inner: int, mass: float | None) -> str | None:
    """Why an outer step of `inner` times `timestep`, fs, is too long for hydrogens of this mass, amu; None if not."""
    if mass is None or inner == 1 or inner * timestep <= longest_outer_step(mass):
        return None
    heavier = f", or {longest_outer_step(HEAVY):.2f} fs with hydrogens of {HEAVY:g} amu" * (mass < HEAVY)
    return (
        f"an outer step of {inner} x {timestep:g} fs is too long for hydrogens of {mass:.3f} amu, whose bonds vibrate "
        f"with a period of {period(mass):.0f} fs: kicks near half of it resonate, and averages will be wrong; outer "
        f"steps should be at most {longest_outer_step(mass):.2f} fs{heavier}"
    )
