"""Multiple time steps in ASE: a fast calculator moves the atoms, and that of the atoms corrects it."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from ase import units
from ase.constraints import FixAtoms
from ase.md.md import MolecularDynamics
from numpy.typing import NDArray

from torchmdx.dynamics.multiple_steps import DisagreementError, disagreement, thermal_limits, worst_atom
from torchmdx.dynamics.vibrations import doubt_about_outer_step, lightest_hydrogen, recommended_inner

if TYPE_CHECKING:
    from ase import Atoms

Floats = NDArray[np.float64]


class MultipleTimeSteps(MolecularDynamics):
    """Velocity Verlet-RESPA, or BAOAB-RESPA at a temperature, as in `torchmdx.dynamics.multiple_steps`.

    Example::

        atoms.calc, fast = torchmdx.Calculator("model.safetensors"), torchmdx.Calculator("fast.safetensors")
        dynamics = MultipleTimeSteps(atoms, 0.5 * units.fs, fast, inner=4, temperature_K=300)
        dynamics.run(10)  # 10 outer steps of 2 fs

    A step of ASE is an outer one, of `inner` times `timestep`: `run`, intervals and `get_time` count these. Quantities
    are in ASE's units. A step after which the forces of the two calculators differ too much raises DisagreementError,
    and the atoms are where they were before it.

    Args:
        timestep: Of the inner steps.
        fast: A calculator of ASE, near that of the atoms, which is evaluated `inner` times as often.
        inner: Steps of `fast` in an outer step; None: as many as averages allow, as in `torchmdx.Dynamics`.
        temperature_K: None for constant energy.
        friction: In 1 / ASE's unit of time.
        max_force_difference: Largest difference of the forces on an atom, eV/Å; None: the default of
            `torchmdx.Dynamics`.
        rng: A NumPy generator of random numbers.
        options: As for `ase.md.md.MolecularDynamics`.

    Raises:
        DisagreementError: From `run`, where the forces of the calculators differ by more than the limit.
        ValueError: For constraints other than fixed atoms, and values out of range.
    """

    def __init__(
        self,
        atoms: Atoms,
        timestep: float,
        fast: Any,
        inner: int | None = None,
        *,
        temperature_K: float | None = None,
        friction: float = 0.001 / units.fs,
        max_force_difference: float | None = None,
        rng: np.random.Generator | None = None,
        **options: Any,
    ) -> None:
        positive = dict(timestep=timestep, temperature_K=temperature_K, friction=friction)
        for name, value in (positive | dict(max_force_difference=max_force_difference)).items():
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be > 0 and finite, got {value}")
        others = sorted({type(one).__name__ for one in atoms.constraints if not isinstance(one, FixAtoms)})
        if others:
            raise ValueError(f"multiple time steps keep constraints that fix atoms (FixAtoms), got {', '.join(others)}")
        fixed = np.zeros(len(atoms), bool)
        for one in atoms.constraints:
            fixed[one.index] = True
        inner = _checked_inner(inner, timestep / units.fs, lightest_hydrogen(atoms.numbers, atoms.get_masses(), fixed))
        super().__init__(atoms, inner * timestep, **options)
        self.inner, self.inner_timestep, self.rng = inner, timestep, rng or np.random.default_rng()
        limits = thermal_limits(atoms.get_masses(), inner * timestep / units.fs, temperature_K or 0.0)
        self._limits = np.where(fixed, np.inf, max_force_difference or limits)
        self.kept = 1.0 if temperature_K is None else math.exp(-friction * timestep)
        thermal = 0.0 if temperature_K is None else units.kB * temperature_K
        self._noise = np.sqrt((1 - self.kept**2) * thermal * atoms.get_masses())[:, None]
        self._quick = atoms.copy()
        self._quick.calc = fast

    def step(self, forces: Floats | None = None) -> Floats:
        """An outer step. Returns the forces of the calculator of the atoms."""
        atoms, half = self.atoms, 0.5 * self.inner_timestep
        before = atoms.get_positions(), atoms.get_momenta()
        full = atoms.get_forces(md=True) if forces is None else forces
        fast = self._fast_forces()
        self._require_agreement(full - fast, self.nsteps)
        self._kick(self.inner * half * (full - fast))
        for _ in range(self.inner):
            self._kick(half * fast)
            self._drift(half)
            if self.kept < 1:
                noise = self.rng.standard_normal((len(atoms), 3))
                atoms.set_momenta(self.kept * atoms.get_momenta() + self._noise * noise)
            self._drift(half)
            fast = self._fast_forces()
            self._kick(half * fast)
        full = atoms.get_forces(md=True)
        try:
            self._require_agreement(full - fast, self.nsteps + 1)
        except DisagreementError:
            atoms.set_positions(before[0], apply_constraint=False)
            atoms.set_momenta(before[1], apply_constraint=False)
            raise
        self._kick(self.inner * half * (full - fast))
        found: Floats = full
        return found

    def _require_agreement(self, difference: Floats, number: int) -> None:
        if worst_atom(difference, self._limits)[1] > 1:
            raise disagreement(number, difference, self._limits, np.array([0, len(self.atoms)]))

    def _kick(self, impulse: Floats) -> None:
        self.atoms.set_momenta(self.atoms.get_momenta() + impulse)

    def _drift(self, time: float) -> None:
        self.atoms.set_positions(self.atoms.get_positions() + time * self.atoms.get_velocities())

    def _fast_forces(self) -> Floats:
        self._quick.cell = self.atoms.cell
        self._quick.set_positions(self.atoms.get_positions(), apply_constraint=False)
        found: Floats = self._quick.get_forces(md=True)
        return found


def _checked_inner(inner: int | None, timestep: float, mass: float | None) -> int:
    """Inner steps of timestep, fs, with hydrogens of this mass, amu; a warning if they are too many."""
    if inner is None:
        return recommended_inner(timestep, mass)
    if isinstance(inner, bool) or not isinstance(inner, int) or inner < 1:
        raise ValueError(f"inner must be a whole number of steps >= 1, got {inner!r}")
    if (doubt := doubt_about_outer_step(timestep, inner, mass)) is not None:
        warnings.warn(doubt, stacklevel=3)
    return inner
