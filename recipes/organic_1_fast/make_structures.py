"""Starting structures of the fast model of organic-1: molecules and ions of its training, pairs, and water.

python make_structures.py -o structures.xyz

Needs RDKit. `torchmdx distill` runs short dynamics from them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms
from rdkit import Chem, RDLogger
from rdkit.Chem import AllChem

ORGANIC = Path(__file__).resolve().parent.parent / "organic_1"
MOST_ATOMS = 32
CONTACT = 2.2  # Å between the nearest atoms of two molecules
WATER = "O"
SIDES, SPACING = (3, 5), 3.1  # fewest and most molecules along a box of water, and their distance in Å: 1.0 g/cm³
STRAIN = 0.03  # the distance is larger or smaller by up to this share


def read(name: str) -> list[str]:
    """SMILES of training molecules; those of validation and test are left out."""
    lines = [line.split() for line in (ORGANIC / name).read_text().splitlines()]
    return [words[0] for words in lines if words[-1] == "train"]


def embed(smiles: str, seed: int) -> Atoms | None:
    """A conformer, minimized with MMFF; None if there is none, or it is too large."""
    molecule = Chem.AddHs(Chem.MolFromSmiles(smiles))
    if molecule.GetNumAtoms() > MOST_ATOMS or AllChem.EmbedMolecule(molecule, randomSeed=seed) != 0:
        return None
    if AllChem.MMFFHasAllMoleculeParams(molecule):
        AllChem.MMFFOptimizeMolecule(molecule, maxIters=500)
    else:
        AllChem.UFFOptimizeMolecule(molecule, maxIters=500)
    numbers = [atom.GetAtomicNum() for atom in molecule.GetAtoms()]
    atoms = Atoms(numbers, molecule.GetConformer().GetPositions())
    atoms.info |= {"charge": Chem.GetFormalCharge(molecule), "smiles": smiles}
    return atoms


def drawn(smiles: list[str], count: int, random: np.random.Generator) -> list[Atoms]:
    """Conformers of this many molecules, at random."""
    found: list[Atoms] = []
    for k in random.permutation(len(smiles)):
        atoms = embed(smiles[k], int(random.integers(2**31)))
        if atoms is not None:
            found.append(atoms)
        if len(found) == count:
            break
    return found


def together(parts: list[Atoms], random: np.random.Generator) -> Atoms:
    """Molecules at contact, in random orientations."""
    whole = parts[0].copy()
    for part in parts[1:]:
        turned, along = part.copy(), random.normal(size=3)
        turned.rotate(random.uniform(0, 360), random.normal(size=3), center="COM")
        turned.positions += whole.get_center_of_mass() - turned.get_center_of_mass()
        while np.linalg.norm(whole.positions[:, None] - turned.positions, axis=-1).min() < CONTACT:
            turned.positions += 0.1 * along / np.linalg.norm(along)
        whole += turned
    whole.info = {"charge": sum(part.info["charge"] for part in parts)}
    whole.info["smiles"] = ".".join(part.info["smiles"] for part in parts)
    return whole


def liquid(water: Atoms, random: np.random.Generator) -> Atoms:
    """A periodic box of water molecules on a grid, each turned at random, of a random size and density."""
    spacing, sides = SPACING * random.uniform(1 - STRAIN, 1 + STRAIN), random.integers(SIDES[0], SIDES[1] + 1, 3)
    box = Atoms(cell=spacing * sides, pbc=True)
    for place in np.ndindex(*sides):
        turned = water.copy()
        turned.rotate(random.uniform(0, 360), random.normal(size=3), center="COM")
        turned.positions += spacing * np.array(place) - turned.get_center_of_mass()
        box += turned
    box.info = {"charge": 0, "smiles": f"{sides.prod()} {WATER}"}
    return box


def main() -> None:
    """Writes the file, and tells what is in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="structures.xyz")
    parser.add_argument("--molecules", type=int, default=560)
    parser.add_argument("--ions", type=int, default=120)
    parser.add_argument("--pairs", type=int, default=50)
    parser.add_argument("--waters", type=int, default=15)
    parser.add_argument("--liquids", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--other-than", help="a file of this script, whose molecules are left out")
    args = parser.parse_args()
    RDLogger.DisableLog("rdApp.*")
    random = np.random.default_rng(args.seed)
    molecules, ions = drawn(read("smiles.txt"), args.molecules, random), drawn(read("ions.txt"), args.ions, random)
    small = [atoms for atoms in molecules if len(atoms) <= MOST_ATOMS // 2 and not atoms.info["charge"]]
    water = embed(WATER, 1)
    assert water is not None
    pairs = [
        together([small[k] for k in random.choice(len(small), 2)] + [water] * int(random.integers(2)), random)
        for _ in range(args.pairs)
    ]
    clusters = [together([water] * int(random.integers(2, 9)), random) for _ in range(args.waters)]
    liquids = [liquid(water, random) for _ in range(args.liquids)]
    before = ase.io.read(args.other_than, ":") if args.other_than else []
    known = {str(atoms.info["smiles"]) for atoms in before if "." not in str(atoms.info["smiles"])}
    every = [atoms for atoms in [*molecules, *ions] if atoms.info["smiles"] not in known] + [*pairs, *clusters]
    every += liquids
    ase.io.write(args.output, every, format="extxyz")
    charges = np.array([atoms.info["charge"] for atoms in every])
    print(
        f"{len(every)} structures, {sum(map(len, every))} atoms, {np.count_nonzero(charges)} charged, "
        f"{sorted({int(z) for atoms in every for z in atoms.numbers})}"
    )


if __name__ == "__main__":
    main()
