"""Which outer steps a fast model allows: short runs at constant energy with multiple time steps."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.dynamics.dynamics import Dynamics
from torchmdx.dynamics.particles import checked_masses, with_heavy_hydrogens
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.step.results import NonFiniteError, StepError
from torchmdx.structures.system import Batch, System
from torchmdx.structures.units import PICOSECOND

Floats = NDArray[np.float64]

HEAVY = 3.0  # amu, of heavy hydrogens
OUTER = (2.0, 3.0, 4.0, 5.0, 6.0, 8.0)  # in units of the inner step, in fs if that is 1
# eV/atom/ps: a Langevin thermostat of 1/ps takes up this much when the temperature is 0.8 K too high.
MOST_DRIFT = 2e-4
MOST_RATIO = 3.0  # of deviations of the energy, to that of single steps: resonance shows here first
LEAST_LENGTH, MOST_LENGTH = 0.1, 4.0  # ps
FEWEST_STEPS = 20  # outer ones
MOST_ENERGIES = 400  # of a run
INTERRUPTED = "interrupted"


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
        uncertainty: Standard error of the drift.
        most_deviation: meV, of stable runs.
    """

    hydrogen: float | None
    inner: float
    count: int
    length: float
    deviation: float
    drift: float
    failed: str = ""
    uncertainty: float = 0.0
    most_deviation: float = math.inf

    @property
    def outer(self) -> float:
        """fs."""
        return self.inner * self.count

    @property
    def is_stable(self) -> bool:
        drifts = self.drift - self.uncertainty > MOST_DRIFT
        return not (self.failed or drifts or self.deviation > self.most_deviation)


@dataclass(frozen=True, eq=False)
class Course:
    """Times [K] ps, total energies [K,S] eV, atoms of each structure [S], and why the run ended early, if it did."""

    times: Floats
    energies: Floats
    sizes: NDArray[np.int64]
    failed: str = ""


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
) -> Course:
    """Total energies at outer steps of a run at constant energy. fast: None for single steps of the potential."""
    multiple: dict[str, Any] = {} if fast is None else dict(fast=fast, inner=count)
    start: dict[str, Any] = dict(temperature=temperature, seed=seed, hydrogen_mass=hydrogen)
    found, steps, failed = [], [], ""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="an outer step of ")  # that is what is tried
            dynamics = Dynamics(potential, list(systems), integrator="verlet", timestep=inner, **start, **multiple)
        first, every = dynamics.snapshot(), count * max(1, num_outer // MOST_ENERGIES)
        sizes = np.diff(first.particles.starts)
        later = dynamics.snapshots(count * num_outer, every=every, interrupted=interrupted)
        for snapshot in itertools.chain([first], later):
            found.append(snapshot.energy + snapshot.kinetic_energy)
            steps.append(snapshot.step)
            if not (abs(found[-1] - found[0]) <= first.kinetic_energy).all():
                failed = f"energy wrong by all kinetic energy after {snapshot.time:.0f} fs"
                break
    except (StepError, NonFiniteError) as error:
        failed = str(error).partition(";")[0]
        sizes = np.array([system.num_atoms for system in systems])
    if interrupted():
        failed = INTERRUPTED
    return Course(np.array(steps) * inner / PICOSECOND, np.array(found), sizes, failed)


def trial_of(
    run: Course, *, hydrogen: float | None, inner: float, count: int, most_deviation: float = math.inf
) -> Trial:
    """The deviation and the drift of the energies of a run."""
    deviation = drift = uncertainty = math.inf
    if not run.failed:
        changes = run.energies - run.energies[0]
        slopes, starts = np.polyfit(run.times, changes, 1)
        drift = float(np.sqrt(((slopes / run.sizes) ** 2).mean()))
        deviation = float(1e3 * np.sqrt(run.energies.var(0).mean()))
        around = changes - slopes * run.times[:, None] - starts
        spread = np.sqrt([correlated_variance(values) for values in around.T]) / (run.times.std() * len(run.times))
        uncertainty = float(np.sqrt(((spread / run.sizes) ** 2).mean()))
    length = float(run.times[-1]) if len(run.times) else 0.0
    return Trial(hydrogen, inner, count, length, deviation, drift, run.failed, uncertainty, most_deviation)


def correlated_variance(values: Floats) -> float:
    """The variance of the sum of values around 0 that are correlated in time, up to the first uncorrelated lag."""
    products = np.correlate(values, values, "full")[len(values) - 1 :]
    negative = np.flatnonzero(products <= 0)
    last = int(negative[0]) if len(negative) else len(products)
    return float(products[0] + 2 * products[1:last].sum())


def have_hydrogens(systems: Sequence[System]) -> bool:
    """Whether any structure has hydrogens."""
    return any(bool((system.atomic_numbers == 1).any()) for system in systems)


def _may_be_heavy(systems: Sequence[System]) -> bool:
    """Whether the atoms that hydrogens are bonded to have the mass to make them heavy."""
    batch = Batch.of(list(systems))
    try:
        with_heavy_hydrogens(batch, checked_masses(batch, None), HEAVY)
    except ValueError:
        return False
    return True


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
    masses: list[float | None] = [None, HEAVY] if have_hydrogens(systems) and _may_be_heavy(systems) else [None]
    each = seconds / len(masses) / (len(OUTER) + 1)
    found: list[Trial] = []
    for hydrogen in masses:
        single = inner if hydrogen is None else 2 * inner
        most = math.inf
        for outer in (None, *OUTER):
            step, count = (single, 1) if outer is None else (inner, round(outer))
            cost = speed.whole if outer is None else speed.whole + count * speed.fast
            length = min(MOST_LENGTH, max(LEAST_LENGTH, each / cost * step * count / PICOSECOND))
            number = max(FEWEST_STEPS, math.ceil(length * PICOSECOND / (step * count)))
            taken: dict[str, Any] = dict(hydrogen=hydrogen, inner=step, count=count)
            start: dict[str, Any] = dict(temperature=temperature, seed=seed, interrupted=interrupted)
            model = None if outer is None else fast
            run = energies(potential, model, systems, num_outer=number, **taken, **start)
            if run.failed == INTERRUPTED:
                return found
            found.append(trial_of(run, **taken, most_deviation=most))
            if outer is None and not found[-1].failed:
                most = MOST_RATIO * found[-1].deviation
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
