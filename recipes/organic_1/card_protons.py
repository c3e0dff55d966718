"""Shared protons, moved on a line from one atom to the other in molecules and ions relaxed with GFN2-xTB."""

from __future__ import annotations

from typing import Any

import numpy as np
from card_methods import Network, Structure, Workers, gfn2, relax
from rdkit import Chem
from rdkit.Chem import AllChem

from torchmdx.structures.units import KCAL_PER_MOL

SHARING = {
    "malonaldehyde": "O=C/C=C\\O",
    "salicylaldehyde": "O=Cc1ccccc1O",
    "acetylacetone, enol": "CC(=O)/C=C(/C)O",
    "ethanolamine, protonated": "OCC[NH3+]",
    "ethylenediamine, protonated": "NCC[NH3+]",
    "histamine, protonated": "NCCc1c[nH+]c[nH]1",
    "histidine, protonated": "NC(Cc1c[nH+]c[nH]1)C(=O)O",
    "hydrogen maleate": "O=C([O-])/C=C\\C(=O)O",
    "salicylate": "O=C([O-])c1ccccc1O",
}
CONFORMERS, LARGEST_FORCE, MOST_STEPS = 40, 0.03, 150
BONDED, SHARED = 1.3, 2.1  # Å, of a proton and its atom and of it and the other atom at most
AT_THE_END = 1.02  # Å, of it and the other atom
POINTS = 17
RIGHT = 1.0  # kcal/mol


def hydrogen_bonds(mol: Any, positions: np.ndarray) -> list[tuple[float, int, int, int]]:
    """(distance of proton and acceptor, donor, proton, acceptor) of N and O that are three bonds apart or more."""
    polar = [atom.GetIdx() for atom in mol.GetAtoms() if atom.GetSymbol() in "NO"]
    steps = Chem.GetDistanceMatrix(mol)
    return [
        (float(np.linalg.norm(positions[atom.GetIdx()] - positions[other])), donor.GetIdx(), atom.GetIdx(), other)
        for atom in mol.GetAtoms()
        if atom.GetSymbol() == "H"
        for donor in atom.GetNeighbors()
        if donor.GetIdx() in polar
        for other in polar
        if steps[donor.GetIdx(), other] >= 3
    ]


def line(smiles: str) -> tuple[list[Structure], list[float], list[float]]:
    """The structures, GFN2-xTB's energies of them, and how far the proton is from its donor, Å."""
    mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
    AllChem.EmbedMultipleConfs(mol, CONFORMERS, randomSeed=1)
    AllChem.MMFFOptimizeMoleculeConfs(mol, maxIters=500)
    conformers = [conformer.GetPositions() for conformer in mol.GetConformers()]
    best = min(conformers, key=lambda positions: min(hydrogen_bonds(mol, positions)))
    numbers = np.array([atom.GetAtomicNum() for atom in mol.GetAtoms()])
    structure = relax(Structure(numbers, best, Chem.GetFormalCharge(mol)), LARGEST_FORCE, MOST_STEPS)
    apart, donor, proton, acceptor = min(hydrogen_bonds(mol, structure.positions))
    x = structure.positions
    length = float(np.linalg.norm(x[proton] - x[donor]))
    if length > BONDED or apart > SHARED:
        raise ValueError(
            f"{smiles} must have a hydrogen bond in GFN2-xTB's minimum, its proton at most {BONDED} and {SHARED} Å "
            f"from two atoms, got {length:.2f} and {apart:.2f} Å"
        )
    end = x[acceptor] + AT_THE_END * (x[proton] - x[acceptor]) / apart
    structures = []
    for share in np.linspace(0, 1, POINTS):
        moved = x.copy()
        moved[proton] = (1 - share) * x[proton] + share * end
        structures.append(structure.at(moved))
    lengths = [float(np.linalg.norm(s.positions[proton] - s.positions[donor])) for s in structures]
    return structures, [gfn2(s)[0] for s in structures], lengths


def right_to(lengths: list[float], error: np.ndarray) -> float:
    """The last length before the error first exceeds the tolerance. error: kcal/mol, from the start."""
    wrong = np.flatnonzero(error > RIGHT)
    return lengths[wrong[0] - 1] if len(wrong) else lengths[-1]


def protons(network: Network, workers: Workers) -> list[dict[str, Any]]:
    """Energies along each line from its start, kcal/mol, and the largest difference of the two methods."""
    rows = []
    found = workers.map(line, SHARING.values())
    for (name, smiles), (structures, theirs, lengths) in zip(SHARING.items(), found, strict=True):
        ours = np.array([network(structure)[0] for structure in structures]) / KCAL_PER_MOL
        wanted = np.array(theirs) / KCAL_PER_MOL
        ours, wanted = ours - ours[0], wanted - wanted[0]
        where = int(np.abs(ours - wanted).argmax())
        rows.append(
            {
                "molecule": name,
                "smiles": smiles,
                "charge": structures[0].charge,
                "lengths": np.round(lengths, 3).tolist(),
                "gfn2": wanted.round(3).tolist(),
                "network": ours.round(3).tolist(),
                "largest": float((ours - wanted)[where]),
                "at": lengths[where],
                "right_to": right_to(lengths, np.abs(ours - wanted)),
            }
        )
    return rows
