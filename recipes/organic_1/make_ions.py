"""Ions of the molecules of make_molecules.py: one proton less or more at each kind of site. Needs RDKit.

python make_ions.py --start start
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from make_molecules import Job, canonical, embed, group_of
from rdkit import Chem, RDLogger
from start_file import Entry, read_entries, write_entries

ACCEPTOR = "$([CX3]=[OX1]),$(C#N),$([NX3+](=O)[O-]),$([SX4](=O)=O)"
PLACES = (  # family, pattern, its atom that changes, change of charge, weight in the draw
    ("acid", "[CX3](=O)[OX2H1]", 2, -1, 1.5),
    ("sulfonic acid", "[SX3,SX4](=O)[OX2H1]", 2, -1, 1.5),
    ("phenol", "c[OX2H1]", 1, -1, 1.5),
    ("enol", "[CX3](=[#6])[OX2H1]", 2, -1, 1.5),
    ("N-OH, O-OH", "[#7,#8][OX2H1]", 1, -1, 1.2),
    ("alcohol", "[CX4][OX2H1]", 1, -1, 0.7),
    ("imide", "[NX3;H1](C=[O,S])C=[O,S]", 0, -1, 2.0),
    ("amide", "[NX3;H1,H2][CX3]=[OX1,SX1]", 0, -1, 1.2),
    ("sulfonamide", "[NX3;H1,H2][SX4](=O)=O", 0, -1, 1.5),
    ("N-H beside S", "[NX3;H1,H2][SX2,SX3]", 0, -1, 1.0),
    ("aniline", "[NX3;H1,H2]c", 0, -1, 1.0),
    ("azole", "[nH]", 0, -1, 1.5),
    ("amidine", "[NX3;H1,H2][CX3]=[NX2]", 0, -1, 1.0),
    ("enamine", "[NX3;H1,H2][CX3]=[CX3]", 0, -1, 1.0),
    ("cyanamide", "[NX3;H1,H2]C#N", 0, -1, 2.0),
    ("imine N-H", "[NX2;H1]=[#6]", 0, -1, 0.7),
    ("hydrazine", "[NX3;H1,H2][#7,#8]", 0, -1, 0.7),
    ("amine N-H", "[NX3;H1,H2;!$(N[!#6;!#1]);!$(N[!CX4])][CX4]", 0, -1, 0.25),
    ("thiol", "[SX2H1]", 0, -1, 1.5),
    ("C-H of two acceptors", f"[CX4;!H0]([{ACCEPTOR}])[{ACCEPTOR}]", 0, -1, 2.5),
    ("C-H of nitro", "[CX4;!H0][NX3+](=O)[O-]", 0, -1, 1.5),
    ("C-H of one acceptor", f"[CX4;!H0][{ACCEPTOR}]", 0, -1, 0.35),
    ("alkyne", "[CX2;H1]#[CX2]", 0, -1, 1.2),
    ("amine", "[NX3;+0;!$(N[!#6;!#1]);!$(N[!CX4])]", 0, 1, 0.7),
    ("aniline N", "[NX3;+0;!$(N[!#6;!#1]);!$(NC=[O,S,N])]c", 0, 1, 0.4),
    ("hydrazine N", "[NX3;+0;!$(N*=*);!$(Nc)][#7,#8]", 0, 1, 0.6),
    ("imine", "[NX2;+0;!$(N=[#6][NX3])]=[#6]", 0, 1, 1.2),
    ("amidinium", "[NX2;+0]=[#6][NX3]", 0, 1, 2.0),
    ("aromatic N", "[nX2;+0]", 0, 1, 1.2),
    ("nitrile", "[NX1]#[CX2][#6]", 0, 1, 0.4),
    ("amide O", "[OX1;+0]=[CX3][NX3]", 0, 1, 0.6),
    ("carbonyl O", "[OX1;+0]=[#6;!$(C[NX3])]", 0, 1, 0.5),
    ("thiocarbonyl", "[SX1;+0]=[#6]", 0, 1, 0.6),
    ("sulfoxide", "[OX1;+0]=[SX3]([#6])[#6]", 0, 1, 0.8),
    ("N-oxide", "[OX1-;$(O[n+]),$(O[NX4+])]", 0, 1, 1.0),
    ("ether", "[OX2;H0;!$(O*=*)]([#6])[#6]", 0, 1, 0.3),
    ("alcohol O", "[OX2;H1][CX4]", 0, 1, 0.25),
    ("thioether", "[SX2;H0]([CX4])[CX4]", 0, 1, 0.4),
)
CARBANIONS = (  # pattern of C-, X and Y that hands its charge to Y: the form that force fields know
    "[CX3-][CX3]=[OX1]",
    "[CX3-][NX3+]=[OX1]",
    "[CX3-][CX2]#[NX1]",
)
CARBON_ACIDS = ("C-H of two acceptors", "C-H of nitro", "C-H of one acceptor")
SMALL, MIDDLE, MOST = 16, 24, 40  # atoms of a parent: up to three ions, two, and one of some
SHARE_OF_LARGE = 0.3


@dataclass(frozen=True)
class Ion:
    """An ion of a molecule. smiles: as embedded; key: the same for each way to draw it; group: its neutral form."""

    smiles: str
    key: str
    family: str
    weight: float
    group: str
    clear: bool


def changed(mol: Chem.Mol, index: int, change: int) -> Chem.Mol | None:
    """With a proton more or less at an atom."""
    editable = Chem.RWMol(mol)
    atom = editable.GetAtomWithIdx(index)
    hydrogens = atom.GetTotalNumHs() + change
    atom.SetFormalCharge(atom.GetFormalCharge() + change)
    atom.SetNoImplicit(True)
    atom.SetNumExplicitHs(hydrogens)
    atom.SetChiralTag(Chem.ChiralType.CHI_UNSPECIFIED)
    made = editable.GetMol()
    return made if Chem.SanitizeMol(made, catchErrors=True) == Chem.SanitizeFlags.SANITIZE_NONE else None


def drawn(mol: Chem.Mol, queries: list[Chem.Mol]) -> Chem.Mol:
    """A carbanion next to an acceptor as enolate, nitronate or the like, to be embedded flat; others as they are."""
    for query in queries:
        match = mol.GetSubstructMatch(query)
        if match:
            editable = Chem.RWMol(mol)
            carbon, middle, end = match
            charge = editable.GetAtomWithIdx(end)
            editable.GetBondBetweenAtoms(carbon, middle).SetBondType(Chem.BondType.DOUBLE)
            bond = editable.GetBondBetweenAtoms(middle, end)
            triple = bond.GetBondType() == Chem.BondType.TRIPLE
            bond.SetBondType(Chem.BondType.DOUBLE if triple else Chem.BondType.SINGLE)
            editable.GetAtomWithIdx(carbon).SetFormalCharge(0)
            charge.SetFormalCharge(-1)
            made = editable.GetMol()
            if Chem.SanitizeMol(made, catchErrors=True) == Chem.SanitizeFlags.SANITIZE_NONE:
                return made
    return mol


def key_of(mol: Chem.Mol) -> str:
    """Atoms with their hydrogens, who is bonded to whom, and the total charge: no bond orders, no stereo."""
    bare = Chem.RWMol(mol)
    for atom, old in zip(bare.GetAtoms(), mol.GetAtoms(), strict=True):
        atom.SetNumExplicitHs(old.GetTotalNumHs())
        atom.SetNoImplicit(True)
        atom.SetFormalCharge(0)
        atom.SetIsAromatic(False)
        atom.SetChiralTag(Chem.ChiralType.CHI_UNSPECIFIED)
    for bond in bare.GetBonds():
        bond.SetBondType(Chem.BondType.SINGLE)
        bond.SetIsAromatic(False)
        bond.SetStereo(Chem.BondStereo.STEREONONE)
    return f"{Chem.GetFormalCharge(mol)} {Chem.MolToSmiles(bare, isomericSmiles=False)}"


def ions_of(entry: Entry) -> list[Ion]:
    """Every ion that the patterns give, once."""
    RDLogger.DisableLog("rdApp.*")
    mol = Chem.MolFromSmiles(entry.name)
    carbanions = [Chem.MolFromSmarts(text) for text in CARBANIONS]
    found: dict[str, Ion] = {}
    done: set[tuple[int, int]] = set()
    for family, pattern, place, change, weight in PLACES:
        for match in mol.GetSubstructMatches(Chem.MolFromSmarts(pattern)):
            if (match[place], change) in done:
                continue
            done.add((match[place], change))
            made = changed(mol, match[place], change)
            smiles = made and canonical(Chem.MolToSmiles(drawn(made, carbanions)))
            if not smiles:
                continue
            key = key_of(Chem.MolFromSmiles(smiles))
            if key not in found:
                group = group_of(smiles)
                # What an enolate or nitronate gives back is the enol; the molecule is known by the proton taken.
                clear = group == entry.group or (family in CARBON_ACIDS and "c-" not in smiles and "cH-" not in smiles)
                found[key] = Ion(smiles, key, family, weight, group, clear)
    return list(found.values())


def several(entry: Entry, rng: random.Random) -> int:
    """How many ions to take of a molecule: small ones give more, since their labels are cheap."""
    atoms = len(entry.numbers)
    if atoms <= MIDDLE:
        return 3 if atoms <= SMALL else 2
    return int(rng.random() < SHARE_OF_LARGE)


def choose(parents: list[Entry], ions: list[list[Ion]], known: set[str], seed: int) -> list[tuple[Entry, Ion]]:
    """Ions in random order, without those that molecules of two subsets share and those in `known`."""
    home = {parent.group: parent.subset for parent in parents}
    subsets = defaultdict(set)
    for parent, own in zip(parents, ions, strict=True):
        for ion in own:
            subsets[ion.key].add(parent.subset)
    rng = random.Random(seed)
    taken = set(known)
    chosen = []
    for parent, own in zip(parents, ions, strict=True):
        can = [ion for ion in own if ion.clear and ion.key not in taken and len(subsets[ion.key]) == 1]
        can = [ion for ion in can if home.get(ion.group, parent.subset) == parent.subset]
        # The largest of u^(1/weight), u at random, are a draw by weight without putting back.
        can.sort(key=lambda ion: math.log(rng.random()) / ion.weight, reverse=True)
        for ion in can[: several(parent, rng)]:
            taken.add(ion.key)
            chosen.append((parent, ion))
    rng.shuffle(chosen)
    return chosen


def main() -> None:
    """Writes ions.npz and ions.txt next to molecules.npz."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--start", type=Path, default=Path("start"))
    parser.add_argument("--seed", type=int, default=20263)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    RDLogger.DisableLog("rdApp.*")
    molecules = read_entries(args.start / "molecules.npz")
    known = {key_of(Chem.MolFromSmiles(entry.name)) for entry in molecules if entry.charge}
    parents = [e for e in molecules if e.charge == 0 and 2 < len(e.numbers) <= MOST]
    with multiprocessing.Pool(args.workers) as pool:
        ions = pool.map(ions_of, parents, chunksize=32)
        chosen = choose(parents, ions, known, args.seed)
        jobs = [Job(ion.smiles, e.group, e.subset, args.seed + k, 2) for k, (e, ion) in enumerate(chosen)]
        made = pool.map(embed, jobs, chunksize=8)
    entries = [entry for entry in made if entry is not None]
    write_entries(args.start / "ions.npz", entries)
    (args.start / "ions.txt").write_text("".join(f"{entry.name} {entry.subset}\n" for entry in entries))
    every = [ion for own in ions for ion in own]
    print(f"{len(parents)} molecules have {len(every)} ions, {sum(not ion.clear for ion in every)} of unclear group")
    mean = np.mean([len(entry.numbers) for entry in entries])
    print(f"{len(entries)} ions, {len(made) - len(entries)} without conformers; {mean:.1f} atoms in the mean")
    for (subset, charge), count in sorted(Counter((e.subset, e.charge) for e in entries).items()):
        print(f"{subset} {charge:+d}: {count}")
    for family, count in Counter(ion.family for _, ion in chosen).most_common():
        print(f"{family}: {count}")


if __name__ == "__main__":
    main()
