"""Torsion scans of capped residues: relaxed with GFN2-xTB at fixed φ or ψ, then both methods at the same structures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from card_methods import Network, Structure, Workers, gfn2, relax
from make_molecules import backbones, canonical
from rdkit import Chem
from rdkit.Chem import AllChem

from torchmdx.structures.units import KCAL_PER_MOL

RESIDUES = ("ALA", "SER", "LEU", "ASP", "PHE")
ANGLES = {"phi": 0, "psi": 1}  # where the four atoms begin in BACKBONE
BACKBONE = "[CX3](=O)[NX3H][CX4H][CX3](=O)[NX3H]"  # carbonyl C, O, N, CA, C, O, N
CHAIN = (0, 2, 3, 4, 6)  # of those: C, N, CA, C, N
SPACING = 15  # degrees
START = {"phi": -150.0, "psi": 150.0}  # extended; each scan fixes one and relaxes the other
LARGEST_FORCE, MOST_STEPS = 0.08, 40  # of each relaxation: eV/Å


def molecule(residue: str, seed: int) -> tuple[str, Structure, list[int]]:
    """SMILES, the extended conformer, and the five backbone atoms of an acetylated N-methyl amide."""
    smiles = canonical(f"CC(=O){backbones()[residue]}NC")
    mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
    AllChem.EmbedMolecule(mol, randomSeed=seed)
    AllChem.MMFFOptimizeMolecule(mol, maxIters=500)
    match = mol.GetSubstructMatch(Chem.MolFromSmarts(BACKBONE))
    chain = [match[k] for k in CHAIN]
    for angle, first in ANGLES.items():
        Chem.rdMolTransforms.SetDihedralDeg(mol.GetConformer(), *chain[first : first + 4], START[angle])
    numbers = np.array([atom.GetAtomicNum() for atom in mol.GetAtoms()])
    return smiles, Structure(numbers, mol.GetConformer().GetPositions()), chain


def scan(job: tuple[str, str, int]) -> dict[str, Any]:
    """Structures and GFN2-xTB's energies over a full turn, from the extended one. job: residue, angle, seed."""
    from ase.constraints import FixInternals

    residue, angle, seed = job
    smiles, structure, chain = molecule(residue, seed)
    four = chain[ANGLES[angle] : ANGLES[angle] + 4]
    mask = beyond(structure, four[1], four[2])
    degrees = (START[angle] + np.arange(0, 360, SPACING) + 180) % 360 - 180
    rows = []
    for value in degrees:
        structure = turned(structure, four, float(value), mask)
        constraint = FixInternals(dihedrals_deg=[[float(value) % 360, four]], epsilon=1e-5)
        structure = relax(structure, LARGEST_FORCE, MOST_STEPS, constraint)
        rows.append((float(value), structure.positions, gfn2(structure)[0]))
    rows.sort(key=lambda row: row[0])
    return {
        "residue": residue,
        "angle": angle,
        "smiles": smiles,
        "numbers": structure.numbers,
        "degrees": [row[0] for row in rows],
        "positions": [row[1] for row in rows],
        "gfn2": [row[2] for row in rows],
    }


def turned(structure: Structure, four: list[int], degrees: float, mask: np.ndarray) -> Structure:
    """The structure with that dihedral; `mask` marks the atoms that move."""
    from ase import Atoms

    atoms = Atoms(numbers=structure.numbers, positions=structure.positions)
    atoms.set_dihedral(*four, degrees, mask=mask)
    return structure.at(atoms.positions)


def beyond(structure: Structure, near: int, far: int) -> np.ndarray:
    """Atoms on the far side of a bond."""
    from ase import Atoms
    from ase.neighborlist import build_neighbor_list, natural_cutoffs

    atoms = Atoms(numbers=structure.numbers, positions=structure.positions)
    neighbours = build_neighbor_list(atoms, natural_cutoffs(atoms, 1.15), self_interaction=False, bothways=True)
    found, open_ = {far}, [far]
    while open_:
        for other in neighbours.get_neighbors(open_.pop())[0]:
            if other != near and other not in found:
                found.add(int(other))
                open_.append(int(other))
    return np.array([k in found for k in range(len(structure.numbers))])


def torsions(network: Network, workers: Workers, subsets: dict[str, str], seed: int) -> list[dict[str, Any]]:
    """Both curves of every scan, kcal/mol, each from its own minimum. subsets: of molecules, by SMILES."""
    jobs = [(residue, angle, seed) for residue in reversed(RESIDUES) for angle in ANGLES]  # the longest first
    found = []
    for result in workers.map(scan, jobs):
        ours = np.array([network(Structure(result["numbers"], x))[0] for x in result.pop("positions")])
        ours, theirs = (np.array(e) / KCAL_PER_MOL for e in (ours, result["gfn2"]))
        difference = (ours - ours.mean()) - (theirs - theirs.mean())
        found.append(
            {key: result[key] for key in ("residue", "angle", "smiles", "degrees")}
            | {
                "subset": subsets.get(result["smiles"], "none"),
                "gfn2": (theirs - theirs.min()).round(3).tolist(),
                "network": (ours - ours.min()).round(3).tolist(),
                "rmse": float(np.sqrt((difference**2).mean())),
                "largest": float(np.abs(difference).max()),
                "height": float(np.ptp(theirs)),
            }
        )
    return sorted(found, key=lambda row: (RESIDUES.index(row["residue"]), row["angle"]))


def read_subsets(path: Path) -> dict[str, str]:
    """Subset by SMILES, from smiles.txt."""
    return dict(line.rsplit(" ", 1) for line in path.read_text().splitlines())
