"""Which outer steps a fast model allows: short runs at constant energy with multiple time steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.dynamics.dynamics import Dynamics
from torchmdx.dynamics.particles import Particles
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.results import NonFiniteError, StepError
from torchmdx.structures.system import System
from torchmdx.structures.units import FORCE_TO_ACCELERATION, PICOSECOND

Floats = NDArray[np.float64]

HEAVY = 3.0  # amu, of heavy hydrogens
OUTER = (2.0, 3.0, 4.0, 5.0, 6.0, 8.0)  # in units of the inner step, in fs if that is 1
# eV/atom/ps: twice the rate at which a Langevin thermostat of 1/ps would heat by 0.8 K. Larger drifts are unstable.
MOST_DRIFT = 1e-4
LEAST_LENGTH, MOST_LENGTH = 0.1, 4.0  # ps
FEWEST_STEPS = 20  # outer ones


@dataclass(frozen=True)
class Trial:
    """A run at constant energy.

    Attributes:
        hydrogen: Mass of hydrogens, amu; None: that of the element.
        inner: fs.
        count: Inner steps of an outer one; 1: single steps of the potential.
        length: ps.
        deviation: Standard deviation of the energy, meV, the root mean square over the structures.
        drift: eV/atom/ps, the root mean square over the structures.
        failed: Why the run ended early; empty otherwise.
    """

    hydrogen: float | None
    inner: float
    count: int
    length: float
    deviation: float
    drift: float
    failed: str = ""

    @property
    def outer(self) -> float:
        """fs."""
        return self.inner * self.count

    @property
    def is_stable(self) -> bool:
        return not self.failed and self.drift <= MOST_DRIFT


@dataclass(frozen=True)
class Speed:
    """Costs of a step of both models, s, on the structures of the tests."""

    whole: float
    fast: float

    @property
    def ratio(self) -> float:
        return self.fast / self.whole

    def gain(self, inner: float, count: int, single: float) -> float:
        """How much faster outer steps of `count` inner ones are than single steps of `single` fs."""
        return inner * count / single * self.whole / (self.whole + count * self.fast)


def energies(
    potential: Potential | Ensemble,
    fast: Potential | None,
    systems: Sequence[System],
    *,
    temperature: float,
    seed: int,
    hydrogen: float | None,
    inner: float,
    count: int,
    num_outer: int,
    interrupted: Callable[[], bool] = lambda: False,
) -> tuple[Floats, Particles, str]:
    """Total energies [K,S] eV before and after each outer step, the particles, and why it ended early.

    Velocity Verlet with multiple time steps. h = count · inner, f of the fast model, F of the potential::

        v ← v + h/2 (F - f)/m
        count times:  v ← v + inner/2 f/m;  x ← x + inner v;  v ← v + inner/2 f/m
        v ← v + h/2 (F - f)/m
    """
    start = Dynamics(
        potential, list(systems), integrator="verlet", temperature=temperature, seed=seed, hydrogen_mass=hydrogen
    )
    particles, state = start.motion.particles, start.snapshot()
    whole = start.step
    near = whole if fast is None else CapturedStep(fast, start.batch)
    push = FORCE_TO_ACCELERATION * particles.inverse_masses()[:, None]
    x, v, large = state.positions, state.velocities, state.forces
    small = large if fast is None else near(x).forces.copy()
    found = [state.energy + particles.kinetic_energy(v)]
    try:
        for _ in range(num_outer):
            if interrupted():
                return np.array(found), particles, "interrupted"
            v = v + count * inner / 2 * push * (large - small)
            for _ in range(count):
                v = v + inner / 2 * push * small
                x = x + inner * v
                if fast is not None or count == 1:
                    result = near(x)
                    small = result.forces.copy()
                v = v + inner / 2 * push * small
            if fast is not None:
                result = whole(x)
            large = result.forces.copy()
            small = large if fast is None else small
            v = v + count * inner / 2 * push * (large - small)
            found.append(result.energy + particles.kinetic_energy(v))
            if not (abs(found[-1] - found[0]) <= found[0] - state.energy).all():  # as wrong as all kinetic energy
                return np.array(found), particles, f"energy lost after {(len(found) - 1) * count * inner:.0f} fs"
    except (StepError, NonFiniteError) as error:
        return np.array(found), particles, str(error)
    return np.array(found), particles, ""


def trial_of(
    found: Floats, particles: Particles, failed: str, *, hydrogen: float | None, inner: float, count: int
) -> Trial:
    """The deviation and the drift of energies [K,S]."""
    times = np.arange(len(found)) * inner * count / PICOSECOND
    deviation = drift = math.inf
    if not failed:
        atoms = np.diff(particles.starts)
        slopes = np.polyfit(times, found - found[0], 1)[0] / atoms
        drift = float(np.sqrt((slopes**2).mean()))
        deviation = float(1e3 * np.sqrt(found.var(0).mean()))
    return Trial(hydrogen, inner, count, float(times[-1]), deviation, drift, failed)


def have_hydrogens(systems: Sequence[System]) -> bool:
    """Whether any structure has hydrogens."""
    return any(bool((system.atomic_numbers == 1).any()) for system in systems)


def default_inner(systems: Sequence[System]) -> float:
    """The inner step, fs."""
    return 1.0 if have_hydrogens(systems) else 2.0


def trials(
    potential: Potential | Ensemble,
    fast: Potential,
    systems: Sequence[System],
    speed: Speed,
    *,
    temperature: float,
    seed: int,
    inner: float,
    seconds: float,
    interrupted: Callable[[], bool] = lambda: False,
    note: Callable[[Trial], None] = lambda trial: None,
) -> list[Trial]:
    """Outer steps of increasing length, with both masses of hydrogens, each until one is unstable.

    Args:
        seconds: Wall time of all of them, from which their length follows.
    """
    masses: list[float | None] = [None, HEAVY] if have_hydrogens(systems) else [None]
    each = seconds / len(masses) / (len(OUTER) + 1)
    found: list[Trial] = []
    for hydrogen in masses:
        single = inner if hydrogen is None else 2 * inner
        for outer in (None, *OUTER):
            step, count = (single, 1) if outer is None else (inner, round(outer))
            cost = speed.whole if outer is None else speed.whole + count * speed.fast
            length = min(MOST_LENGTH, max(LEAST_LENGTH, each / cost * step * count / PICOSECOND))
            number = max(FEWEST_STEPS, math.ceil(length * PICOSECOND / (step * count)))
            taken: dict[str, Any] = dict(hydrogen=hydrogen, inner=step, count=count)
            start: dict[str, Any] = dict(temperature=temperature, seed=seed, interrupted=interrupted)
            model = None if outer is None else fast
            run = energies(potential, model, systems, num_outer=number, **taken, **start)
            if run[2] == "interrupted":
                return found
            found.append(trial_of(*run, **taken))
            note(found[-1])
            if outer is not None and not found[-1].is_stable:
                break
    return found


def largest(found: Sequence[Trial], hydrogen: float | None) -> Trial | None:
    """The largest stable outer step with this mass of hydrogens; None if there is none."""
    stable = [one for one in found if one.hydrogen == hydrogen and one.count > 1 and one.is_stable]
    return max(stable, key=lambda one: one.outer, default=None)


def plain(found: Sequence[Trial]) -> list[dict[str, Any]]:
    """Trials as JSON values: an infinite number is None."""
    rows = [asdict(one) for one in found]
    return [
        {name: None if isinstance(value, float) and math.isinf(value) else value for name, value in row.items()}
        for row in rows
    ]
