"""Multiple time steps in ASE: a fast calculator moves the atoms, and that of the atoms corrects it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from ase import units
from ase.constraints import FixAtoms
from ase.md.md import MolecularDynamics
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ase import Atoms

Floats = NDArray[np.float64]


class MultipleTimeSteps(MolecularDynamics):
    """Velocity Verlet-RESPA, or BAOAB-RESPA at a temperature, as of `torchmdx.dynamics.multiple_steps`.

    Example::

        atoms.calc, fast = torchmdx.Calculator("model.safetensors"), torchmdx.Calculator("fast.safetensors")
        dynamics = MultipleTimeSteps(atoms, 0.5 * units.fs, fast, inner=4, temperature_K=300)
        dynamics.run(10)  # 10 outer steps of 2 fs

    A step of ASE is an outer one, of `inner` times `timestep`: `run`, intervals and `get_time` count these. Quantities
    are in ASE's units. Forces of the two calculators are not compared.

    Args:
        timestep: Of the inner steps.
        fast: A calculator of ASE, near that of the atoms, which is evaluated `inner` times as often.
        temperature_K: None for constant energy.
        friction: In 1 / ASE's unit of time.
        rng: A NumPy generator of random numbers.
        options: As for `ase.md.md.MolecularDynamics`.

    Raises:
        ValueError: For constraints other than fixed atoms, and values out of range.
    """

    def __init__(
        self,
        atoms: Atoms,
        timestep: float,
        fast: Any,
        inner: int,
        *,
        temperature_K: float | None = None,
        friction: float = 0.001 / units.fs,
        rng: np.random.Generator | None = None,
        **options: Any,
    ) -> None:
        if isinstance(inner, bool) or not isinstance(inner, int) or inner < 1:
            raise ValueError(f"inner must be a whole number of steps >= 1, got {inner!r}")
        for name, value in (("timestep", timestep), ("temperature_K", temperature_K), ("friction", friction)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be > 0 and finite, got {value}")
        others = sorted({type(one).__name__ for one in atoms.constraints if not isinstance(one, FixAtoms)})
        if others:
            raise ValueError(f"multiple time steps keep constraints that fix atoms (FixAtoms), got {', '.join(others)}")
        super().__init__(atoms, inner * timestep, **options)
        self.inner, self.inner_timestep, self.rng = inner, timestep, rng or np.random.default_rng()
        self.kept = 1.0 if temperature_K is None else math.exp(-friction * timestep)
        thermal = 0.0 if temperature_K is None else units.kB * temperature_K
        self._noise = np.sqrt((1 - self.kept**2) * thermal * atoms.get_masses())[:, None]
        self._quick = atoms.copy()
        self._quick.calc = fast

    def step(self, forces: Floats | None = None) -> Floats:
        """An outer step. Returns the forces of the calculator of the atoms."""
        atoms, half = self.atoms, 0.5 * self.inner_timestep
        full = atoms.get_forces(md=True) if forces is None else forces
        fast = self._fast_forces()
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
        self._kick(self.inner * half * (full - fast))
        found: Floats = full
        return found

    def _kick(self, impulse: Floats) -> None:
        self.atoms.set_momenta(self.atoms.get_momenta() + impulse)

    def _drift(self, time: float) -> None:
        self.atoms.set_positions(self.atoms.get_positions() + time * self.atoms.get_velocities())

    def _fast_forces(self) -> Floats:
        self._quick.cell = self.atoms.cell
        self._quick.set_positions(self.atoms.get_positions(), apply_constraint=False)
        found: Floats = self._quick.get_forces(md=True)
        return found
