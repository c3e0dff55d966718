"""Trains a TensorNet2 with an Ewald sum on a dilute gas of ions, most beyond its cutoff, and finds their charges.

OpenMM labels them, with charges of ±0.8 e and a short repulsion. Without a Coulomb energy most forces stay unexplained.
"""

import shutil
from pathlib import Path

import numpy as np
import openmm
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

import torchmdx
from torchmdx.training import make_config, train

OUT = Path("out") / "23_ions_in_a_gas"
CHARGE, IONS, BOX, CLOSEST = 0.8, 16, 24.0, 2.8  # e, Å
SIZES = {"num_channels": 16, "num_layers": 1, "num_radial": 8, "num_charges": 1, "cutoff": 4.0, "max_z": 18}
# Only the charges of the last layer count, and no distance that occurs is damped.
COULOMB = {"prior": "coulomb", "periodic": "ewald", "weights": [0.0, 1.0], "damping": 2.0, "cutoff": 9.0}


def labelled(rng: np.random.Generator) -> Atoms:
    """Ions at random positions, none closer than CLOSEST."""
    ions = Atoms("NaCl" * (IONS // 2), cell=[BOX] * 3, pbc=True)
    system, force = openmm.System(), openmm.NonbondedForce()
    while ions.get_all_distances(mic=True)[np.triu_indices(IONS, 1)].min() < CLOSEST:
        ions.positions = rng.uniform(0, BOX, (IONS, 3))
    system.setDefaultPeriodicBoxVectors(*(0.1 * BOX * np.eye(3)))
    force.setNonbondedMethod(force.Ewald), force.setEwaldErrorTolerance(1e-6)
    system.addForce(force)
    for z in ions.numbers:
        system.addParticle(1.0), force.addParticle(CHARGE if z == 11 else -CHARGE, 0.28, 1.0)
    context = openmm.Context(system, openmm.VerletIntegrator(1), openmm.Platform.getPlatform("Reference"))
    context.setPositions(0.1 * ions.positions)
    found = context.getState(energy=True, forces=True)
    energy, forces = found.getPotentialEnergy()._value / 96.485, found.getForces(True)._value / 964.85  # eV, eV/Å
    ions.calc = SinglePointCalculator(ions, energy=energy, forces=forces)
    return ions


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True), OUT.mkdir(parents=True)
    rng = np.random.default_rng(0)
    write(OUT / "gas.xyz", [labelled(rng) for _ in range(120)])
    other, rest = labelled(rng), {"data": {"path": str(OUT / "gas.xyz"), "validation": 20}}
    rest |= {"optimizer": {"learning_rate": 0.01}, "training": {"epochs": 10, "batch_size": 8}}
    for name, priors in {"with Ewald": [COULOMB], "without": []}.items():
        model = {"name": "tensornet2", **SIZES, "priors": priors}
        train(make_config({"model": model, **rest, "output": {"directory": str(OUT / name)}}))
        ions = Atoms(other, calculator=torchmdx.Calculator(OUT / name / "best.safetensors"))
        error = np.linalg.norm(ions.get_forces() - other.get_forces()) / np.linalg.norm(other.get_forces())
        print(f"{name}: other forces are off by {100 * error:.0f} %; charges", ions.get_charges()[:2].round(3), "e")


if __name__ == "__main__":
    main()
