"""Multiple time steps (r-RESPA): a fast potential moves the atoms, and the difference to the full one corrects them.

Of `inner` = n steps of h, with forces f of the fast potential and F of the full one::

    v ← v + n h/2 (F(x) - f(x))/m
    n times a step of the integrator with f
    v ← v + n h/2 (F(x) - f(x))/m

Thermostats and restraints are in the inner steps. With velocity Verlet this is r-RESPA (Tuckerman and others, 1992),
with Langevin dynamics BAOAB-RESPA. Within rounding, n = 1 is the single step of these two with F, and f = F at any n is
n single steps.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.dynamics.vibrations import doubt_about_outer_step, recommended_inner
from torchmdx.models.potential import Potential
from torchmdx.step.results import NonFiniteError, StepError
from torchmdx.structures.units import BOLTZMANN, FORCE_TO_ACCELERATION

if TYPE_CHECKING:
    from torchmdx.dynamics.motion import Motion

Floats = NDArray[np.float64]

LEAST_TEMPERATURE = 300.0  # K, of the default limit, so that cold runs have no stricter one


class DisagreementError(StepError):
    """The forces of the fast and the full potential differ too much; names step, atom and structure.

    Attributes:
        step: Of the evaluation that disagrees; the state of the run is that before.
        atom: Index in the batch.
        difference, most: The difference of the forces on it, and the limit, eV/Å.
    """

    def __init__(self, text: str, step: int = -1, atom: int = -1, difference: float = 0.0, most: float = 0.0) -> None:
        super().__init__(text)
        self.step, self.atom, self.difference, self.most = step, atom, difference, most


@dataclass(frozen=True)
class MultipleSteps:
    """n steps between evaluations of the full potential.

    Attributes:
        inner: n.
        most: The largest difference of the forces on an atom, eV/Å; None takes `limits`.
        small_steps: Whether n single steps with the full potential replace those that exceed it.
    """

    inner: int
    most: float | None = None
    small_steps: bool = False

    def limits(self, motion: Motion) -> Floats:
        """The largest difference of the forces on each atom [N], eV/Å; infinite for frozen atoms.

        By default those of `thermal_limits` at the highest temperature of the run.
        """
        particles = motion.particles
        if self.most is not None:
            found = np.full(len(particles.masses), self.most)
        else:
            found = thermal_limits(particles.masses, self.inner * motion.timestep, float(motion.temperatures.max()))
        return np.where(particles.mobile, found, np.inf)


def thermal_limits(masses: Floats, outer: float, temperature: float) -> Floats:
    """The largest differences of the forces on atoms of these masses, amu, with outer steps in fs, eV/Å.

    The two kicks of an outer step may give an atom at rest no more than its mean kinetic energy, 3/2 k T, at 300 K at
    least: a larger correction is no small one, and steps with such are not stable for long.
    """
    thermal = 3 * BOLTZMANN * max(LEAST_TEMPERATURE, temperature)
    found: Floats = np.sqrt(thermal * masses / FORCE_TO_ACCELERATION) / outer
    return found


def multiple_steps_of(
    fast: Any,
    inner: int | None,
    most: float | None,
    small_steps: bool,
    exchange_every: int | None,
    timestep: float,
    mass: float | None,
) -> MultipleSteps | None:
    """The settings of a run; None without a fast potential. Raises ValueError, TypeError.

    Args:
        inner: None takes as many as the vibrations of hydrogens allow, with this timestep, fs.
        mass: Of the lightest hydrogen that moves, amu; None without any.
    """
    if fast is None:
        for name, value in (("inner", inner), ("max_force_difference", most), ("small_steps", small_steps or None)):
            if value is not None:
                raise ValueError(f"{name} needs a fast potential, got {name}={value!r} without one")
        return None
    if not isinstance(fast, Potential):
        raise TypeError(f"fast must be a Potential, got {type(fast).__name__}")
    if inner is None:
        inner = recommended_inner(timestep, mass)
    if isinstance(inner, bool) or not isinstance(inner, int) or inner < 1:
        raise ValueError(f"inner must be a whole number of steps >= 1 with a fast potential, got {inner!r}")
    if most is not None and not (np.isfinite(most) and most > 0):
        raise ValueError(f"max_force_difference must be > 0 eV/Å and finite, got {most}")
    if exchange_every is not None and exchange_every % inner:
        raise ValueError(f"exchange_every must be a multiple of inner={inner} steps, got {exchange_every}")
    if (doubt := doubt_about_outer_step(timestep, inner, mass)) is not None:
        warnings.warn(doubt, stacklevel=5)
    return MultipleSteps(inner, None if most is None else float(most), bool(small_steps))


def require_multiple(name: str, steps: int, inner: int) -> None:
    """Raises ValueError unless a number of steps is a multiple of `inner`: there is no state between."""
    if steps % inner:
        raise ValueError(f"{name} must be a multiple of inner={inner} steps, got {steps}")


def worst_atom(difference: Floats, limits: Floats) -> tuple[int, float]:
    """The atom whose forces differ [N,3] most in terms of its limit, and the ratio, > 1 if they disagree."""
    ratio = np.sqrt((difference * difference).sum(-1)) / limits
    atom = int(np.argmax(ratio))
    return atom, float(ratio[atom])


def disagreement(number: int, difference: Floats, limits: Floats, starts: NDArray[np.int64]) -> DisagreementError:
    """The error of step `number` with these differences [N,3], one of which exceeds its limit."""
    atom, _ = worst_atom(difference, limits)
    structure = int(np.searchsorted(starts, atom, side="right")) - 1
    where = f"atom {atom - int(starts[structure])}" + f" of structure {structure}" * (len(starts) > 2)
    found, most = float(np.linalg.norm(difference[atom])), float(limits[atom])
    text = (
        f"step {number}: the forces of the fast and the full potential must differ by at most {most:.3g} eV/Å, got "
        f"{found:.4g} eV/Å at {where}; the fast potential does not know this structure, or the outer step is too long"
    )
    return DisagreementError(text, number, atom, found, most)


def of_fast_potential(error: NonFiniteError) -> NonFiniteError:
    """The error with what it is of."""
    return NonFiniteError(f"fast potential: {error}")
