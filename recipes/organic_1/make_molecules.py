"""Molecules of organic-1 with two or three conformers each, from the SMILES in fragments.py and a seed. Needs RDKit.

python make_molecules.py --output start
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import re
from dataclasses import dataclass
from pathlib import Path

import fragments
import numpy as np
from rdkit import Chem, RDLogger
from rdkit.Chem import AllChem, rdMolDescriptors
from rdkit.Chem.MolStandardize import rdMolStandardize
from start_file import Entry, subset_of, write_entries

MOST_ATOMS = 40
ELEMENTS = {1, 6, 7, 8, 9, 16, 17}
HETERO = {7, 8, 9, 16, 17}
IONISABLE = (  # pattern, its atom that changes, change of charge
    ("C(=O)[OX2H]", 2, -1),
    ("[SX4](=O)(=O)[OX2H]", 3, -1),
    ("c[OX2H]", 1, -1),
    ("[#6][SX2H]", 1, -1),
    ("[CX4][OX2H]", 1, -1),
    ("[NX3;H1;$(NS(=O)=O)]", 0, -1),
    ("[NX3;H1,H2;$(N(C=O)C=O)]", 0, -1),
    ("[NX3;!$(N[#6]=[O,N,S]);!$(N[S,N,O,F,Cl]);!$(Nc);!$(NC#N);$(N[CX4])]", 0, 1),
    ("[nX2;$(n1c[nH]cc1),$(n1ccccc1),$(n1ccncc1)]", 0, 1),
    ("[NX2;$(N=C(N)N),$(N=C(N)C)]", 0, 1),
)


@dataclass(frozen=True)
class Job:
    """A molecule to embed. group: what shares a subset with it."""

    smiles: str
    group: str
    subset: str
    seed: int
    count: int


def canonical(smiles: str, most: int = MOST_ATOMS) -> str | None:
    """Canonical SMILES, or None for what does not belong: too large, other elements, radicals, charges above one."""
    mol = Chem.MolFromSmiles(smiles)
    if mol is None or "." in smiles:
        return None
    full = Chem.AddHs(mol)
    if full.GetNumAtoms() > most or any(atom.GetAtomicNum() not in ELEMENTS for atom in full.GetAtoms()):
        return None
    if any(atom.GetNumRadicalElectrons() for atom in mol.GetAtoms()) or abs(Chem.GetFormalCharge(mol)) > 1:
        return None
    text = str(Chem.MolToSmiles(mol))
    return None if re.search(r"\[SH\d?\]", text) else text  # hydrogen on S(IV), S(VI): what broken pieces leave


def group_of(smiles: str) -> str:
    """The neutral molecule without stereo: ions, zwitterions and stereoisomers of one molecule share a subset."""
    mol = rdMolStandardize.Uncharger(force=True).uncharge(Chem.MolFromSmiles(smiles))
    return str(Chem.MolToSmiles(mol, isomericSmiles=False))


def grow(rng: random.Random, rings: list[str], groups: list[str]) -> str | None:
    """A molecule put together at random until it has about as many atoms as it shall have."""
    target = rng.triangular(7, 36, 19)
    mol = Chem.MolFromSmiles(rng.choice(rings) if rng.random() < 0.72 else rng.choice(groups))
    for _ in range(8):
        if Chem.AddHs(mol).GetNumAtoms() >= target:
            break
        piece = Chem.MolFromSmiles(rng.choice(rings) if rng.random() < 0.12 else rng.choice(groups))
        joined = attach(rng, mol, piece)
        if joined is not None and Chem.AddHs(joined).GetNumAtoms() <= MOST_ATOMS:
            mol = joined
    return str(Chem.MolToSmiles(mol))


def attach(rng: random.Random, mol: Chem.Mol, piece: Chem.Mol) -> Chem.Mol | None:
    """A piece in place of a hydrogen of the molecule, by its first atom; None if that is no molecule."""
    places = [a.GetIdx() for a in mol.GetAtoms() if a.GetTotalNumHs() and not a.GetFormalCharge()]
    ends = [a.GetIdx() for a in piece.GetAtoms() if a.GetTotalNumHs() or a.GetFormalCharge()]
    if not places or not ends:
        return None
    here = rng.choice(places)
    first = piece.GetAtomWithIdx(0)
    there = 0 if first.GetTotalNumHs() or first.GetFormalCharge() else ends[0]
    both = {mol.GetAtomWithIdx(here).GetAtomicNum(), piece.GetAtomWithIdx(there).GetAtomicNum()}
    if both <= HETERO and rng.random() < 0.95:  # bonds between heteroatoms exist, but are few
        return None
    editable = Chem.RWMol(Chem.CombineMols(mol, piece))
    shift = mol.GetNumAtoms()
    for index in (here, there + shift):
        atom = editable.GetAtomWithIdx(index)
        if atom.GetNumExplicitHs():
            atom.SetNumExplicitHs(atom.GetNumExplicitHs() - 1)
    editable.AddBond(here, there + shift, Chem.BondType.SINGLE)
    made = editable.GetMol()
    return made if Chem.SanitizeMol(made, catchErrors=True) == Chem.SanitizeFlags.SANITIZE_NONE else None


def ionised(rng: random.Random, smiles: str, patterns: list[tuple[Chem.Mol, int, int]]) -> str | None:
    """The molecule with one more or one less proton, at a place where it has it."""
    mol = Chem.MolFromSmiles(smiles)
    places = [(m[k], dq) for query, k, dq in patterns for m in mol.GetSubstructMatches(query)]
    if not places:
        return None
    index, change = rng.choice(places)
    editable = Chem.RWMol(mol)
    atom = editable.GetAtomWithIdx(index)
    hydrogens = atom.GetTotalNumHs() + change
    atom.SetFormalCharge(atom.GetFormalCharge() + change)
    atom.SetNoImplicit(True)
    atom.SetNumExplicitHs(hydrogens)
    made = editable.GetMol()
    if Chem.SanitizeMol(made, catchErrors=True) != Chem.SanitizeFlags.SANITIZE_NONE:
        return None
    return str(Chem.MolToSmiles(made))


def backbones() -> dict[str, str]:
    """Residues from N to C=O."""
    chains = fragments.RESIDUES | fragments.CHARGED_RESIDUES
    centres = {name: f"[C@@H]({chain})" for name, chain in chains.items()} | {"GLY": "C"}
    return {name: f"N{centre}C(=O)" for name, centre in centres.items()} | {"PRO": "N1CCC[C@H]1C(=O)"}


def amino_acids() -> list[str]:
    """Capped, bare and zwitterionic residues, in every state of charge, and dipeptides."""
    backbone = backbones()
    found = [
        form for body in backbone.values() for form in (f"CC(=O){body}NC", f"{body}O", f"CC(=O){body}N", f"{body}OC")
    ]
    for body in backbone.values():
        zwitterion = body.replace("N1", "[NH2+]1", 1) if body.startswith("N1") else f"[NH3+]{body[1:]}"
        found += [f"{zwitterion}[O-]", f"{body}[O-]", f"{zwitterion}O"]
    neutral = [backbone[name] for name in [*fragments.RESIDUES, "GLY", "PRO"]]
    found += [f"{_renumber(a)}{b}O" for a in neutral for b in neutral]
    found += [f"CC(=O){_renumber(a)}{b}NC" for a in neutral for b in neutral]
    return found


def _renumber(body: str) -> str:
    return body.replace("N1CCC[C@H]1", "N9CCC[C@H]9")


def written() -> list[str]:
    """Every molecule that is named in fragments.py or follows from it without chance."""
    single = fragments.TINY.split() + fragments.IONS.split() + fragments.BIOCHEMICAL.split() + fragments.RINGS.split()
    groups = sorted(set(fragments.GROUPS.split()))
    simple = [f"{end}{group}" for group in groups for end in ("C", "CC", "c1ccc(cc1)", "C=C")]
    pairs = [f"{a}C{b}" for a in ("OC", "NC(=O)", "CSC", "OC(=O)", "N#C", "FC", "NC") for b in groups]
    return single + groups + simple + amino_acids() + pairs


def collect(count: int, seed: int, limit: int | None) -> list[str]:
    """Distinct molecules in a fixed order; `limit` takes that many of the written ones, for trials."""
    rng = random.Random(seed)
    texts = written()
    if limit is not None:
        texts = fragments.TINY.split() + rng.sample(texts, limit)
    rings, groups = fragments.RINGS.split() + fragments.COMMON.split() * 3, fragments.GROUPS.split()
    patterns = [(Chem.MolFromSmarts(text), atom, change) for text, atom, change in IONISABLE]
    found = dict.fromkeys(smiles for smiles in map(canonical, texts) if smiles)
    while len(found) < count:
        smiles = grow(rng, rings, groups)
        if smiles and rng.random() < 0.16:
            smiles = ionised(rng, smiles, patterns)
        smiles = smiles and canonical(smiles)
        if smiles and smiles.count("=[N+]=[N-]") + smiles.count("OO") + smiles.count("[N+](=O)[O-]") < 3:
            found[smiles] = None
    return list(found)


def large_molecules() -> dict[str, str]:
    """The held-out set: SMILES by name."""
    found = dict(fragments.LARGE)
    for sequence in fragments.PEPTIDES:
        body = "".join(_renumber(backbones()[fragments.LETTERS[letter]]) for letter in sequence)
        found[f"ACE-{sequence}-NME"] = f"CC(=O){body}NC"
    return found


def embed(job: Job) -> Entry | None:
    """Conformers: ETKDG, minimised with MMFF or, where that lacks parameters, UFF. None if there are none."""
    RDLogger.DisableLog("rdApp.*")
    mol = Chem.AddHs(Chem.MolFromSmiles(job.smiles))
    options = AllChem.ETKDGv3()
    options.randomSeed, options.maxIterations, options.pruneRmsThresh = job.seed, 30, 0.3
    if not list(AllChem.EmbedMultipleConfs(mol, job.count, options)):
        options.useRandomCoords = True
        if not list(AllChem.EmbedMultipleConfs(mol, job.count, options)):
            return None
    if mol.GetNumAtoms() > 1:
        known = AllChem.MMFFHasAllMoleculeParams(mol)
        (AllChem.MMFFOptimizeMoleculeConfs if known else AllChem.UFFOptimizeMoleculeConfs)(mol, maxIters=500)
    return Entry(
        name=job.smiles,
        group=job.group,
        subset=job.subset,
        charge=Chem.GetFormalCharge(mol),
        numbers=np.array([atom.GetAtomicNum() for atom in mol.GetAtoms()]),
        bonds=np.array([(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in mol.GetBonds()]).reshape(-1, 2),
        fixed=np.array([b.IsInRing() or b.GetBondTypeAsDouble() > 1 or _amide(b) for b in mol.GetBonds()], bool),
        conformers=np.array([conformer.GetPositions() for conformer in mol.GetConformers()]),
    )


def _amide(bond: Chem.Bond) -> bool:
    """Whether half of a turn about a bond would cost as much as a bond: not for torsions."""
    ends = (bond.GetBeginAtom(), bond.GetEndAtom())
    return any(
        a.GetAtomicNum() == 7 and b.GetAtomicNum() == 6 and any(c.GetBondTypeAsDouble() == 2 for c in b.GetBonds())
        for a, b in (ends, ends[::-1])
    )


def main() -> None:
    """Writes molecules.npz, heldout.npz and smiles.txt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("start"))
    parser.add_argument("--count", type=int, default=8600)
    parser.add_argument("--limit", type=int, help="of the written molecules, for trials")
    parser.add_argument("--seed", type=int, default=20261)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    RDLogger.DisableLog("rdApp.*")
    tiny = {text for text in map(canonical, fragments.TINY.split() + fragments.LONE) if text}
    smiles = collect(args.count, args.seed, args.limit)
    groups = [group_of(text) for text in smiles]
    held = large_molecules()
    jobs = [
        Job(text, group, "train" if text in tiny else subset_of(group), args.seed + k, 3)
        for k, (text, group) in enumerate(zip(smiles, groups, strict=True))
    ]
    large = [Job(text, name, "heldout", args.seed + k, 2) for k, (name, text) in enumerate(held.items())]
    with multiprocessing.Pool(args.workers) as pool:
        entries = [entry for entry in pool.imap(embed, jobs, chunksize=8) if entry is not None]
        largest = [entry for entry in pool.imap(embed, large) if entry is not None]
    args.output.mkdir(parents=True, exist_ok=True)
    write_entries(args.output / "molecules.npz", entries)
    write_entries(args.output / "heldout.npz", largest)
    (args.output / "common.txt").write_text("\n".join(sorted(tiny)) + "\n")
    lines = [f"{entry.name} {entry.subset}" for entry in entries] + [f"{entry.name} heldout" for entry in largest]
    (args.output / "smiles.txt").write_text("\n".join(lines) + "\n")
    mean = np.mean([len(entry.numbers) for entry in entries])
    print(f"{len(entries)} molecules, {len(smiles) - len(entries)} without conformers; {mean:.1f} atoms in the mean")
    for entry in largest:
        print(entry.name, rdMolDescriptors.CalcMolFormula(Chem.MolFromSmiles(entry.name)), len(entry.numbers))


if __name__ == "__main__":
    main()
