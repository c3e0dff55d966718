"""Active learning: a potential for an alloy of copper and gold from one structure, with EMT as the reference.

It runs `torchmdx learn`, and compares the potential with EMT at a temperature that was explored, and at a higher one.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from ase import units
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.io import write
from ase.md.langevin import Langevin

import torchmdx

SETTINGS = """
start: {{structures: {folder}/start.extxyz, count: 12}}
explore: {{temperatures: [600, 1200], steps: 100, threshold: 2.0}}
uncertainty: {{members: 2}}
select: {{count: 8, random: 2}}
label: {{calculator: emt}}
train:
  model: {{num_channels: 16, num_layers: 1, num_radial: 8, cutoff: 4.5}}
  optimizer: {{learning_rate: 4.0e-3}}
  training: {{epochs: 12}}
stop: {{rounds: 1, error: 0.05}}
output: {{directory: {folder}/run}}
"""


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="alloy-"))
    alloy = bulk("Cu", cubic=True, a=3.75) * (2, 1, 1)
    alloy.symbols[::4] = "Au"
    write(folder / "start.extxyz", alloy)
    (folder / "learn.yaml").write_text(SETTINGS.format(folder=folder))
    command = [sys.executable, "-m", "torchmdx.commands.cli", "learn", str(folder / "learn.yaml")]
    subprocess.run(command, check=True)  # `torchmdx learn learn.yaml` in a shell

    calculator = torchmdx.Calculator(str(folder / "run" / "potential.safetensors"))
    for temperature in (600, 1500):
        errors, spreads, atoms, rng = [], [], alloy.copy(), np.random.default_rng(1)
        atoms.calc = EMT()
        motion = Langevin(atoms, 2 * units.fs, temperature_K=temperature, friction=0.02 / units.fs, rng=rng)
        for _ in range(10):
            motion.run(20)
            forces = calculator.get_property("forces", atoms)
            errors.append(forces - atoms.get_forces())
            spreads.append(calculator.results["forces_spread"].max())
        error = 1000 * np.sqrt(np.mean(np.square(errors)))
        print(f"{temperature} K: forces differ from EMT's by {error:.0f} meV/Å, largest spread {max(spreads):.2f} eV/Å")


if __name__ == "__main__":
    main()
