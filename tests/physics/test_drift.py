"""Energy is conserved in molecular dynamics, and better so with a shorter time step."""

import numpy as np
import pytest
from ase import units
from ase.md.verlet import VelocityVerlet

from torchmdx import Calculator


def total_energies(atoms, calculator, timestep, duration=40.0):
    """Total energy at every step of a run in the microcanonical ensemble, eV; times in fs."""
    atoms = atoms.copy()
    atoms.calc = calculator
    spread = np.sqrt(atoms.get_masses() * units.kB * 300)[:, None]
    atoms.set_momenta(spread * np.random.default_rng(0).normal(size=(len(atoms), 3)))
    energies = []
    with VelocityVerlet(atoms, timestep * units.fs) as dynamics:
        dynamics.attach(lambda: energies.append(atoms.get_total_energy()))
        dynamics.run(round(duration / timestep))
    return np.array(energies)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["ethanol", "crystal"])
def test_total_energy_is_conserved(potential, name, request):
    atoms = request.getfixturevalue(name)
    calculator = Calculator(potential, dtype="float64", device="cpu")
    long, short = (total_energies(atoms, calculator, timestep) for timestep in (0.5, 0.25))
    deviations = [np.abs(energies - energies[0]).max() for energies in (long, short)]
    # Verlet's error is of second order in the time step; with forces off by 1 % it would not shrink.
    assert deviations[1] < 1e-4
    assert deviations[0] / deviations[1] == pytest.approx(4, rel=0.1)
