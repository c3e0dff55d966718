"""Relaxation and Langevin dynamics with ASE."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from torchmdx.units import BOLTZMANN

if TYPE_CHECKING:
    from ase import Atoms

LARGEST_FORCE = 0.01  # eV/Å: where a relaxation ends
MOST_STEPS = 1000


def relax(atoms: Atoms, pulse: Callable[[], None]) -> None:
    """Moves atoms to a minimum of the energy. Raises ValueError if that takes too long."""
    from ase.optimize import BFGS

    optimizer = BFGS(atoms, logfile=None)
    optimizer.attach(pulse)
    if not optimizer.run(fmax=LARGEST_FORCE, steps=MOST_STEPS):
        force = np.linalg.norm(atoms.get_forces(), axis=1).max()
        raise ValueError(
            f"a relaxation must bring forces below {LARGEST_FORCE} eV/Å in {MOST_STEPS} steps, got {force:.3g} eV/Å"
        )


def langevin(
    atoms: Atoms,
    rng: np.random.Generator,
    pulse: Callable[[], None],
    *,
    temperature: float,
    timestep: float,
    friction: float,
    equilibration: int,
    spacing: int,
) -> Iterator[np.ndarray]:
    """Positions [N,3], without end, `spacing` steps apart, after `equilibration` steps from the given positions.

    temperature K, timestep fs, friction 1/fs. Raises FloatingPointError if the dynamics runs away.
    """
    from ase import units
    from ase.md.langevin import Langevin

    thermal = np.sqrt(BOLTZMANN * temperature * atoms.get_masses())
    atoms.set_momenta(thermal[:, None] * rng.standard_normal((len(atoms), 3)))
    dynamics = Langevin(
        atoms, timestep * units.fs, temperature_K=temperature, friction=friction / units.fs, fixcm=False, rng=rng
    )
    dynamics.attach(pulse)
    dynamics.run(equilibration)
    while True:
        dynamics.run(spacing)
        if not np.isfinite(atoms.positions).all():
            raise FloatingPointError(f"the dynamics ran away within {dynamics.nsteps} steps: positions are not finite")
        yield atoms.positions.copy()
