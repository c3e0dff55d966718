"""Relaxation and Langevin dynamics with ASE."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from torchmdx.structures.units import BOLTZMANN

if TYPE_CHECKING:
    from ase import Atoms

LARGEST_FORCE = 0.01  # eV/Å: convergence criterion of a relaxation
MOST_STEPS = 1000


def relax(atoms: Atoms, pulse: Callable[[], None]) -> None:
    """Moves atoms to a minimum of the energy. Raises ValueError if it does not converge in MOST_STEPS."""
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
    """Endless iterator of positions [N,3], `spacing` steps apart, after `equilibration` steps.

    The centre of mass of a molecule is kept in place: the thermostat's random forces move it. temperature K, timestep
    fs, friction 1/fs.

    Raises:
        FloatingPointError: If the dynamics diverges.
    """
    from ase import units
    from ase.md.langevin import Langevin

    thermal = np.sqrt(BOLTZMANN * temperature * atoms.get_masses())
    atoms.set_momenta(thermal[:, None] * rng.standard_normal((len(atoms), 3)))
    dynamics = Langevin(
        atoms, timestep * units.fs, temperature_K=temperature, friction=friction / units.fs, fixcm=False, rng=rng
    )
    dynamics.attach(pulse)
    centre = atoms.get_center_of_mass()
    dynamics.run(equilibration)
    while True:
        dynamics.run(spacing)
        if not np.isfinite(atoms.positions).all():
            raise FloatingPointError(f"the dynamics diverged within {dynamics.nsteps} steps: positions are not finite")
        drift = 0.0 if atoms.pbc.any() else atoms.get_center_of_mass() - centre
        yield atoms.positions - drift
