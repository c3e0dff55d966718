"""Converts a torchmd-net checkpoint, prints the report, and compares energies and forces with torchmd-net.

The checkpoint was written by torchmd-net 3.1.0; the reference energies and forces were computed by torchmd-net.
"""

import json
from pathlib import Path

import numpy as np
from ase import Atoms

import torchmdx
from torchmdx.commands import main as torchmdx_command

DATA = Path(__file__).parents[1] / "tests" / "data"
OUT = Path("out")


def main() -> None:
    OUT.mkdir(exist_ok=True)
    converted = OUT / "07_converted.safetensors"
    status = torchmdx_command(["convert", str(DATA / "tensornet2.ckpt"), str(converted)])
    if status:
        raise SystemExit(status)
    print("\nmolecule    energy, eV   difference from torchmd-net: energy, eV   largest force, eV/Å")
    calculator = torchmdx.Calculator(converted, dtype="float64", device="cpu")
    for reference in json.loads((DATA / "tensornet2.json").read_text()):
        atoms = Atoms(
            reference["numbers"], reference["positions"], cell=reference["cell"], pbc=reference["cell"] is not None
        )
        atoms.info["charge"] = reference["charge"]
        atoms.calc = calculator
        energy = atoms.get_potential_energy()
        worst = np.abs(atoms.get_forces() - reference["forces"]).max()
        print(f"{reference['name']:<10}  {energy:>10.5f}   {abs(energy - reference['energy']):>41.1e}   {worst:>19.1e}")
    print("\nThis small checkpoint has random weights, so only the agreement is meaningful, not the energies.")


if __name__ == "__main__":
    main()
