"""Trains three seeds of a small potential of ethanol, and lets dynamics run until they disagree; a minute on the CPU.

python examples/ensemble.py [DIRECTORY]
"""

import sys
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms, units
from ase.md.langevin import Langevin
from train import LABELLED, write_store

import torchmdx
from torchmdx.cli import main
from torchmdx.step_result import SpreadError

CONFIG = """\
data: {validation: 30, test: 30}
model: {num_channels: 16, num_layers: 1, num_radial: 16, cutoff: 4.5, max_z: 8}
optimizer: {learning_rate: 5e-3}
schedule: {warmup_steps: 30}
training: {epochs: 12, batch_size: 8, ensemble: 3}
output: {report: false}
"""


def compare_with_errors(run: Path, structures: list[Atoms]) -> None:
    """Spread and error of forces on frames like those that the potentials know, and spread on the same, stretched."""
    calculator = torchmdx.Calculator(run, dtype="float64")
    errors, spreads, stretched = [], [], []
    for atoms in structures[::10]:
        calculator.calculate(Atoms(atoms.numbers, atoms.positions))
        errors.append(np.linalg.norm(calculator.results["forces"] - atoms.get_forces(), axis=1))
        spreads.append(calculator.results["forces_spread"])
        calculator.calculate(Atoms(atoms.numbers, 1.15 * atoms.positions))
        stretched.append(calculator.results["forces_spread"])
    print(f"{calculator}: spread {np.mean(spreads):.3f} eV/Å, error {np.mean(errors):.3f} eV/Å on labelled frames;")
    print(f"spread {np.mean(stretched):.3f} eV/Å on the same frames stretched by 15 %")


def heat(run: Path, atoms: Atoms, file: Path) -> None:
    """Dynamics that gets hotter until the potentials disagree by more than 1 eV/Å about some atom."""
    file.unlink(missing_ok=True)
    atoms = Atoms(atoms.numbers, atoms.positions)
    atoms.calc = torchmdx.Calculator(run, max_force_spread=1.0, spread_file=file)
    dynamics = Langevin(
        atoms, 0.5 * units.fs, temperature_K=300, friction=0.02 / units.fs, fixcm=False, rng=np.random.default_rng(1)
    )
    try:
        for temperature in range(300, 20000, 300):
            dynamics.set_temperature(temperature_K=temperature)
            dynamics.run(20)
    except SpreadError as error:
        print(f"stopped after {dynamics.nsteps} steps, at {temperature} K: {error}")


def run() -> int:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "ethanol_ensemble")
    directory.mkdir(parents=True, exist_ok=True)
    structures = ase.io.read(LABELLED, ":")
    write_store(directory / "ethanol.store", structures)
    (directory / "config.yaml").write_text(CONFIG)
    places = ["--data.path", str(directory / "ethanol.store"), "--output.directory", str(directory / "run")]
    status = main(["train", str(directory / "config.yaml"), *places])
    if status == 0:
        compare_with_errors(directory / "run", structures)
        heat(directory / "run", structures[0], directory / "uncertain.xyz")
    return status


if __name__ == "__main__":
    sys.exit(run())
