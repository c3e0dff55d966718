"""Energy in float32 does not drift: picoseconds of ASE dynamics through the captured step."""

import numpy as np
import pytest
from ase import units
from ase.md.verlet import VelocityVerlet
from ase.optimize import FIRE

from torchmdx import Calculator

# Number of steps and of runs. A run of 5 ps gives the slope to 3e-6 eV/atom/ps; several runs are averaged.
CASES = {"cpu": (2000, 1), "cuda": (10_000, 4)}
TIMESTEP = 0.5  # fs


@pytest.mark.nightly
def test_total_energy_does_not_drift_in_float32(ethanol, device):
    steps, runs = CASES[device]
    ethanol.calc = Calculator(device=device)
    with FIRE(ethanol, logfile=None) as relaxation:
        assert relaxation.run(fmax=0.02, steps=1000)
    calculator = Calculator(device=device, mode="graph" if device == "cuda" else "auto")
    drift = np.mean([slope_of(ethanol, calculator, steps, run) for run in range(runs)])
    assert abs(drift) < 5e-6, f"{drift:.1e} eV/atom/ps"
    report = calculator.report()
    assert report.mode == ("graph" if device == "cuda" else "eager")
    assert report.evaluations == runs * (steps + 1)


def slope_of(start, calculator, steps: int, seed: int) -> float:
    """Of the total energy, eV/atom/ps, from velocities of 300 K."""
    atoms = start.copy()
    atoms.calc = calculator
    spread = np.sqrt(atoms.get_masses() * units.kB * 300)[:, None]
    atoms.set_momenta(spread * np.random.default_rng(seed).normal(size=(9, 3)))
    energies, temperatures = [], []

    def look():
        energies.append(atoms.get_total_energy() / len(atoms))
        temperatures.append(atoms.get_temperature())

    with VelocityVerlet(atoms, TIMESTEP * units.fs) as dynamics:
        dynamics.attach(look)
        dynamics.run(steps)
    assert len(energies) == steps + 1
    assert np.mean(temperatures[steps // 2 :]) > 50  # it moves
    assert np.std(energies) < 2e-4
    return float(np.polyfit(1e-3 * TIMESTEP * np.arange(steps + 1), energies, 1)[0])


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
