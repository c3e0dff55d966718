"""Data sets of the comparison of trainings: train.xyz, validation.xyz and test.xyz with REF_energy and REF_forces.

    python -m benchmarks.training_sets FOLDER --clusters TRAIN TEST    FOLDER/clusters
    python -m benchmarks.training_sets FOLDER --molecules              FOLDER/molecules

clusters: one to six molecules of carbonates, GFN1-xTB, of the tutorials of MACE: TRAIN is solvent_xtb_train_200.xyz, of
which the last 20 frames are for validation and isolated atoms are left out, TEST is solvent_xtb_test.xyz, of which the
last 400 are kept. molecules: 40 molecules of H, C, N, O, F, S and Cl in Langevin dynamics at 600 K with organic-1, one
frame in 50 fs, labelled by GFN2-xTB; of each, 18 frames are for training, the next 2 for validation, and 10 later ones
for the test.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import ase
import ase.io
from ase import units
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution

FORMULAS = (
    "CCO", "CC(=O)O", "CC(C)=O", "c1ccccc1", "c1ccncc1", "CC(=O)N", "CNC(=O)C", "NCC(=O)O", "CSC", "CS(C)=O", "CCF",
    "CCCl", "Fc1ccccc1", "Oc1ccccc1", "Nc1ccccc1", "c1ccsc1", "c1ccoc1", "c1c[nH]cn1", "CC#N", "CC=CC", "C1CCCCC1",
    "OCC(O)CO", "CC(N)C(=O)O", "OC(=O)c1ccccc1O", "CC(=O)Oc1ccccc1C(=O)O", "CC(=O)Nc1ccc(O)cc1", "Cn1cnc2c1cccc2",
    "O=C1CCCN1", "C1COCCO1", "CC1COC(=O)O1", "CCOC(=O)OCC", "FC(F)(F)CO", "ClCC(=O)O", "CSCCC(N)C(=O)O", "NS(=O)(=O)C",
    "O=c1cc[nH]c(=O)[nH]1", "Cc1ccccc1Cl", "N#Cc1ccccc1", "CC(C)CC(N)=O", "C=CC=O",
)  # fmt: skip
SPACING, KEPT, LATER = 50, (18, 2, 10), 10  # steps of 1 fs; frames of a part; frames left out before the test


def write(folder: Path, parts: dict[str, list[ase.Atoms]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, frames in parts.items():
        ase.io.write(folder / f"{name}.xyz", frames, format="extxyz")
        print(f"{folder.name} {name}: {len(frames)} frames, {sum(map(len, frames))} atoms")


def labelled(atoms: ase.Atoms, energy: float, forces: object) -> ase.Atoms:
    found = ase.Atoms(atoms.numbers, atoms.positions)
    found.info["REF_energy"] = float(energy)
    found.arrays["REF_forces"] = forces
    return found


def clusters(train: str, test: str) -> dict[str, list[ase.Atoms]]:
    def read(path: str) -> list[ase.Atoms]:
        frames = [a for a in ase.io.read(path, ":") if len(a) > 1]
        return [labelled(a, a.info["energy_xtb"], a.arrays["forces_xtb"]) for a in frames]

    known = read(train)
    return {"train": known[:-20], "validation": known[-20:], "test": read(test)[-400:]}


def trajectory(formula: str, seed: int) -> list[ase.Atoms]:
    """Frames of one molecule in dynamics, without labels."""
    import numpy as np
    from rdkit import Chem
    from rdkit.Chem import AllChem

    import torchmdx

    molecule = Chem.AddHs(Chem.MolFromSmiles(formula))
    AllChem.EmbedMolecule(molecule, randomSeed=seed)
    symbols = [atom.GetSymbol() for atom in molecule.GetAtoms()]
    atoms = ase.Atoms(symbols, molecule.GetConformer().GetPositions())
    atoms.calc = torchmdx.Calculator("organic-1", device="cpu")
    rng = np.random.default_rng(seed)
    MaxwellBoltzmannDistribution(atoms, temperature_K=600, rng=rng)
    dynamics = Langevin(atoms, units.fs, temperature_K=600, friction=0.02 / units.fs, rng=rng)
    found = []
    for _ in range(sum(KEPT) + LATER):
        dynamics.run(SPACING)
        found.append(ase.Atoms(symbols, atoms.positions.copy()))
    return found


def molecules() -> dict[str, list[ase.Atoms]]:
    from tblite.ase import TBLite

    train, validation, _ = KEPT
    parts: dict[str, list[ase.Atoms]] = {"train": [], "validation": [], "test": []}
    for seed, formula in enumerate(FORMULAS):
        frames = trajectory(formula, seed)
        ends = [0, train, train + validation]
        chosen = [frames[: ends[1]], frames[ends[1] : ends[2]], frames[-KEPT[2] :]]
        calculator = TBLite(method="GFN2-xTB", verbosity=0)
        for part, some in zip(parts.values(), chosen, strict=True):
            for atoms in some:
                atoms.calc = calculator
                part.append(labelled(atoms, atoms.get_potential_energy(), atoms.get_forces()))
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clusters", nargs=2, metavar=("TRAIN", "TEST"))
    parser.add_argument("--molecules", action="store_true")
    options = parser.parse_args()
    if options.clusters:
        write(options.folder / "clusters", clusters(*options.clusters))
    if options.molecules:
        write(options.folder / "molecules", molecules())


if __name__ == "__main__":
    main()
