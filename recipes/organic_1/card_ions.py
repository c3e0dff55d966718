"""Energies of small ions alone, and of acids, amines and their ions with chains longer than in training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from card_methods import Network, Structure, Workers, gfn2, relax
from rdkit import Chem
from rdkit.Chem import AllChem, rdMolTransforms

from torchmdx.structures.units import KCAL_PER_MOL

ALONE = ("[Cl-]", "[F-]", "[OH-]", "[SH-]", "[C-]#N", "[NH4+]", "[OH3+]")
CARBONS = (2, 5, 8, 11, 14, 17)  # of the chain; the acid group has one more
ENDS = {"acid": "C(=O)O", "anion": "C(=O)[O-]", "amine": "N", "cation": "[NH3+]"}
LARGEST_FORCE, MOST_STEPS = 0.03, 80  # of each relaxation: eV/Å


def stretched(smiles: str) -> Structure:
    """A molecule whose chain of carbons is extended, relaxed with GFN2-xTB."""
    mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
    AllChem.EmbedMolecule(mol, randomSeed=1)
    conformer = mol.GetConformer()
    chain = [atom.GetIdx() for atom in mol.GetAtoms() if atom.GetSymbol() == "C"]
    for four in zip(chain, chain[1:], chain[2:], chain[3:], strict=False):
        rdMolTransforms.SetDihedralDeg(conformer, *four, 180.0)
    numbers = np.array([atom.GetAtomicNum() for atom in mol.GetAtoms()])
    structure = Structure(numbers, conformer.GetPositions(), Chem.GetFormalCharge(mol))
    return relax(structure, LARGEST_FORCE, MOST_STEPS) if len(numbers) > 1 else structure


def labelled(smiles: str) -> tuple[Structure, float]:
    """Its structure, and GFN2-xTB's energy."""
    structure = stretched(smiles)
    return structure, gfn2(structure)[0]


def frames_like(data: list[Path], structure: Structure) -> int:
    """How many frames of .npz files of `archive.py unpack` have these atoms and this charge, and no other atoms."""
    total = 0
    for path in data:
        with np.load(path, allow_pickle=False) as arrays:
            wanted = np.zeros(arrays["z"].shape[1], int)
            wanted[: len(structure.numbers)] = np.sort(structure.numbers)[::-1]
            same = (-np.sort(-arrays["z"].astype(int), axis=1) == wanted).all(1)
            total += int((same & (arrays["Q"].ravel() == structure.charge)).sum())
    return total


def ions(network: Network, workers: Workers, data: list[Path]) -> dict[str, list[dict[str, Any]]]:
    """Errors of energies, kcal/mol: of ions alone, and along the chains. data: training frames, which are counted."""
    chains = ["C" * carbons + end for carbons in reversed(CARBONS) for end in ENDS.values()]  # the longest first
    found = dict(zip([*chains, *ALONE], workers.map(labelled, [*chains, *ALONE]), strict=True))
    error = {name: (network(s)[0] - energy) / KCAL_PER_MOL for name, (s, energy) in found.items()}
    alone = [{"ion": name, "frames": frames_like(data, found[name][0]), "error": error[name]} for name in ALONE]
    rows = [
        {"carbons": carbons, "atoms": len(found["C" * carbons + ENDS["anion"]][0].numbers)}
        | {kind: error["C" * carbons + end] for kind, end in ENDS.items()}
        for carbons in CARBONS
    ]
    return {"alone": alone, "chains": rows}
