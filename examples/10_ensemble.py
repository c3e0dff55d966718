"""Trains a small potential with three seeds, and heats a molecule until they disagree; a minute on two cores.

If the spread of the forces exceeds a limit, the run stops and saves the geometry, which is a candidate for the next
training set.
"""

import shutil
from pathlib import Path

import ase.io
import numpy as np
from ase import units
from ase.md.langevin import Langevin

import torchmdx
from torchmdx.step import SpreadError
from torchmdx.training import make_config, train

LABELLED = Path(__file__).parent / "data" / "ethanol.xyz"
RUN = Path("out") / "10_ensemble"
CONFIG = {
    "data": {"path": str(LABELLED), "validation": 30, "test": 30},
    "model": {"num_channels": 16, "num_layers": 1, "num_radial": 16, "cutoff": 4.5, "max_z": 8},
    "optimizer": {"learning_rate": 5e-3},
    "schedule": {"warmup_steps": 30},
    "training": {"epochs": 8, "batch_size": 8, "ensemble": 3},
    "output": {"directory": str(RUN), "report": False},
}


def main() -> None:
    shutil.rmtree(RUN, ignore_errors=True)  # train() never overwrites a run
    status = train(make_config(CONFIG))
    if status:
        raise SystemExit(status)

    atoms = ase.io.read(LABELLED)
    labels = atoms.get_forces()
    atoms.calc = torchmdx.Calculator(RUN, max_force_spread=1.0, spread_file=RUN / "uncertain.xyz")
    errors = np.linalg.norm(atoms.get_forces() - labels, axis=1)
    print(f"first frame: spread {atoms.calc.results['forces_spread'].mean():.3f} eV/Å, error {errors.mean():.3f} eV/Å")
    dynamics = Langevin(atoms, 0.5 * units.fs, temperature_K=300, friction=0.02 / units.fs, fixcm=False)
    try:
        for temperature in range(300, 20000, 300):
            dynamics.set_temperature(temperature_K=temperature)
            dynamics.run(20)
    except SpreadError as error:
        print(f"stopped after {dynamics.nsteps} steps, with the thermostat at {temperature} K: {error}")


if __name__ == "__main__":
    main()
