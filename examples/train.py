"""Trains a small potential in a few minutes on the CPU, and runs dynamics with it.

Gold-copper clusters, shaken at random, with energies and forces of ASE's EMT calculator; nothing is downloaded.

    python examples/train.py [DIRECTORY]
"""

import sys
from pathlib import Path

import numpy as np
from ase import Atoms, units
from ase.calculators.emt import EMT
from ase.cluster import Icosahedron
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution
from ase.md.verlet import VelocityVerlet
from ase.optimize import BFGS

import torchmdx
from torchmdx.cli import main
from torchmdx.datasets.frames import Frames
from torchmdx.datasets.store import StoreWriter

CONFIG = """\
data: {path: clusters.store, validation: 40, test: 40}
model: {num_channels: 32, num_layers: 1, num_radial: 16, cutoff: 5.0}
optimizer: {learning_rate: 3e-3}
training: {epochs: 60, batch_size: 16}
output: {directory: clusters}
"""


def clusters(number: int, seed: int = 0) -> list[Atoms]:
    """Icosahedra of 13 atoms of both metals in random order, relaxed a little and then shaken."""
    generator = np.random.default_rng(seed)
    made = []
    for _ in range(number):
        atoms = Icosahedron("Cu", 2)
        atoms.numbers = generator.choice([29, 79], len(atoms))
        atoms.calc = EMT()
        BFGS(atoms, logfile=None).run(steps=10)
        atoms.positions += generator.normal(0, generator.uniform(0.03, 0.2), atoms.positions.shape)
        made.append(atoms)
    return made


def write_store(path: Path, structures: list[Atoms]) -> None:
    with StoreWriter(path, overwrite=True) as writer:
        for index, atoms in enumerate(structures):
            frame = Frames.single(
                atoms.positions,
                atoms.numbers,
                energy=atoms.get_potential_energy(),
                forces=atoms.get_forces(),
            )
            writer.add(frame, "EMT", index)


def run_dynamics(potential: Path) -> None:
    """A picosecond; the total energy must stay."""
    atoms = clusters(1, seed=7)[0]
    atoms.calc = torchmdx.Calculator(potential)
    MaxwellBoltzmannDistribution(atoms, temperature_K=300, rng=np.random.default_rng(1))
    dynamics = VelocityVerlet(atoms, 2.0 * units.fs)
    before = atoms.get_total_energy()
    dynamics.run(500)
    print(f"1 ps of dynamics: the total energy moved by {1000 * (atoms.get_total_energy() - before):.2f} meV")


def run() -> int:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "trained")
    directory.mkdir(parents=True, exist_ok=True)
    write_store(directory / "clusters.store", clusters(400))
    (directory / "config.yaml").write_text(CONFIG)
    places = ["--data.path", str(directory / "clusters.store"), "--output.directory", str(directory / "run")]
    status = main(["train", str(directory / "config.yaml"), *places, *sys.argv[2:]])
    if status == 0:
        run_dynamics(directory / "run" / "best.safetensors")
    return status


if __name__ == "__main__":
    sys.exit(run())
