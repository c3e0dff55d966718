"""Trains a small potential on an extended XYZ file and runs dynamics with it, in half a minute on two cores.

The file has 300 geometries of ethanol with GFN2-xTB energies (eV) and forces (eV/Å), written by data/make_ethanol.py.
CONFIG has the settings that differ from their defaults; more epochs give smaller errors.
"""

import shutil
from pathlib import Path

import ase.io
import numpy as np
from ase import units
from ase.md.verlet import VelocityVerlet

import torchmdx
from torchmdx.training import make_config, train

LABELLED = Path(__file__).parent / "data" / "ethanol.xyz"
RUN = Path("out") / "05_train"
CONFIG = {
    "data": {"path": str(LABELLED), "validation": 30, "test": 30},
    "model": {"num_channels": 32, "num_layers": 1, "num_radial": 16, "cutoff": 4.5, "max_z": 8},
    "optimizer": {"learning_rate": 3e-3},
    "schedule": {"warmup_steps": 50},
    "training": {"epochs": 12, "batch_size": 8},
    "output": {"directory": str(RUN)},
}


def main() -> None:
    shutil.rmtree(RUN, ignore_errors=True)  # train() never overwrites a run
    status = train(make_config(CONFIG))
    if status:
        raise SystemExit(status)

    atoms = ase.io.read(LABELLED)
    labels = atoms.get_forces()
    atoms.calc = torchmdx.Calculator(RUN / "best.safetensors")
    error = 1000 * np.abs(atoms.get_forces() - labels).mean()
    print(f"first frame: mean force error {error:.0f} meV/Å, mean force {1000 * np.abs(labels).mean():.0f} meV/Å")
    before = atoms.get_total_energy()
    VelocityVerlet(atoms, 0.5 * units.fs).run(400)
    drift = 1000 * (atoms.get_total_energy() - before)
    print(f"0.2 ps of dynamics from this geometry: the total energy drifts by {drift:.2f} meV")
    print(f"potential: {RUN / 'best.safetensors'}, report: {RUN / 'report' / 'index.html'}")


if __name__ == "__main__":
    main()
