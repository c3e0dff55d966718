"""Energy in float32 does not drift: picoseconds of ASE dynamics through the captured step."""

import copy

import numpy as np
import pytest
from ase import units
from ase.md.verlet import VelocityVerlet
from ase.optimize import FIRE

from torchmdx import Calculator

# Seed of the weights, factor on their energies and number of steps. Random weights know no chemistry: these have a
# minimum near ethanol, and the factor keeps its fastest vibration as slow as a C-H bond's (11 fs).
CASES = {"cpu": (2, 1.0, 1000), "cuda": (3, 0.6, 10_000)}
TIMESTEP = 0.5  # fs


def test_total_energy_does_not_drift_in_float32(trained, ethanol, device):
    seed, factor, steps = CASES[device]
    potential = copy.deepcopy(trained(device, seed=seed))
    potential.scale.mul_(factor)
    ethanol.calc = Calculator(potential, dtype="float64", device=device, mode="eager")
    with FIRE(ethanol, logfile=None) as relaxation:
        assert relaxation.run(fmax=0.02, steps=1000)
    ethanol.calc = Calculator(potential, device=device, mode="graph" if device == "cuda" else "auto")
    spread = np.sqrt(ethanol.get_masses() * units.kB * 300)[:, None]
    ethanol.set_momenta(spread * np.random.default_rng(0).normal(size=(9, 3)))
    energies, temperatures = [], []

    def look():
        energies.append(ethanol.get_total_energy() / len(ethanol))
        temperatures.append(ethanol.get_temperature())

    with VelocityVerlet(ethanol, TIMESTEP * units.fs) as dynamics:
        dynamics.attach(look)
        dynamics.run(steps)
    picoseconds = 1e-3 * TIMESTEP * np.arange(steps + 1)
    assert len(energies) == steps + 1
    assert np.mean(temperatures[steps // 2 :]) > 50  # it moves
    assert np.std(energies) < 2e-4
    drift = np.polyfit(picoseconds, energies, 1)[0]
    assert abs(drift) < 1e-5, f"{drift:.1e} eV/atom/ps"
    report = ethanol.calc.report()
    assert report.mode == ("graph" if device == "cuda" else "eager")
    assert report.evaluations == steps + 1


@pytest.mark.gpu
def test_float64_and_float32_run_along_one_path(trained, ethanol):
    """Over so short a time rounding has not grown yet; a wrong force would show."""
    potential, paths = trained("cuda", seed=3), []
    for dtype in ("float32", "float64"):
        atoms = ethanol.copy()
        atoms.calc = Calculator(potential, dtype=dtype, device="cuda")
        with VelocityVerlet(atoms, TIMESTEP * units.fs) as dynamics:
            dynamics.run(50)
        paths.append(atoms.positions)
    assert np.abs(paths[0] - ethanol.positions).max() > 0.01
    assert np.abs(paths[0] - paths[1]).max() < 1e-4
