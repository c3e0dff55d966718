"""Converts an old checkpoint of torchmd-net, prints what was read, and checks that energies and forces are the same.

The checkpoint was written by torchmd-net 3.1.0; beside it lie energies and forces that torchmd-net itself computed.
"""

import json
from pathlib import Path

import numpy as np
from ase import Atoms

import torchmdx
from torchmdx.cli import main as torchmdx_command

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
    for wanted in json.loads((DATA / "tensornet2.json").read_text()):
        atoms = Atoms(wanted["numbers"], wanted["positions"], cell=wanted["cell"], pbc=wanted["cell"] is not None)
        atoms.info["charge"] = wanted["charge"]
        atoms.calc = calculator
        energy = atoms.get_potential_energy()
        worst = np.abs(atoms.get_forces() - wanted["forces"]).max()
        print(f"{wanted['name']:<10}  {energy:>10.5f}   {abs(energy - wanted['energy']):>41.1e}   {worst:>19.1e}")
    print("\nThis small checkpoint has random weights: the agreement means something, the energies do not.")


if __name__ == "__main__":
    main()
