"""Trains a small potential of ethanol in a few minutes on the CPU, and runs dynamics with it.

Learns from 270 geometries in data/ethanol.xyz, labelled with GFN2-xTB; see data/make_ethanol.py.

    python examples/train.py [DIRECTORY [--section.key value ...]]
"""

import sys
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms, units
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution
from ase.md.verlet import VelocityVerlet

import torchmdx
from torchmdx.cli import main
from torchmdx.datasets.frames import Frames
from torchmdx.datasets.store import StoreWriter

LABELLED = Path(__file__).parent / "data" / "ethanol.xyz"
CONFIG = """\
data: {validation: 30, test: 30}
model: {num_channels: 32, num_layers: 1, num_radial: 16, cutoff: 4.5, max_z: 8}
optimizer: {learning_rate: 3e-3}
schedule: {warmup_steps: 50}
training: {epochs: 60, batch_size: 8}
"""


def write_store(path: Path, structures: list[Atoms]) -> None:
    with StoreWriter(path, overwrite=True) as writer:
        for index, atoms in enumerate(structures):
            energy, forces = atoms.get_potential_energy(), atoms.get_forces()
            writer.add(Frames.single(atoms.positions, atoms.numbers, energy=energy, forces=forces), "ethanol", index)


def run_dynamics(atoms: Atoms, potential: Path) -> None:
    """Half a picosecond; the total energy must stay."""
    atoms = Atoms(atoms.numbers, atoms.positions, calculator=torchmdx.Calculator(potential))
    MaxwellBoltzmannDistribution(atoms, temperature_K=300, rng=np.random.default_rng(1))
    dynamics = VelocityVerlet(atoms, 0.5 * units.fs)
    before = atoms.get_total_energy()
    dynamics.run(1000)
    print(f"0.5 ps of dynamics: the total energy moved by {1000 * (atoms.get_total_energy() - before):.2f} meV")


def run() -> int:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "ethanol")
    directory.mkdir(parents=True, exist_ok=True)
    structures = ase.io.read(LABELLED, ":")
    write_store(directory / "ethanol.store", structures)
    (directory / "config.yaml").write_text(CONFIG)
    places = ["--data.path", str(directory / "ethanol.store"), "--output.directory", str(directory / "run")]
    status = main(["train", str(directory / "config.yaml"), *places, *sys.argv[2:]])
    if status == 0:
        run_dynamics(structures[0], directory / "run" / "best.safetensors")
    return status


if __name__ == "__main__":
    sys.exit(run())
