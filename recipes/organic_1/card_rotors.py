"""Barriers of rotation of small molecules: one bond is rotated in GFN2-xTB's minimum, without relaxation."""

from __future__ import annotations

from typing import Any

import numpy as np
from card_assemblies import from_smiles
from card_methods import Network, Structure, Workers, gfn2
from card_torsions import SPACING, beyond, turned

from torchmdx.structures.units import KCAL_PER_MOL

# SMILES, and the two atoms of the bond in it.
ROTORS = {
    "ethane": ("CC", (0, 1)),
    "propane": ("CCC", (0, 1)),
    "butane": ("CCCC", (1, 2)),
    "methanol": ("CO", (0, 1)),
    "methylamine": ("CN", (0, 1)),
    "methanethiol": ("CS", (0, 1)),
    "ethyl chloride": ("CCCl", (0, 1)),
    "propene": ("C=CC", (1, 2)),
    "acetaldehyde": ("CC=O", (0, 1)),
    "butadiene": ("C=CC=C", (1, 2)),
    "dimethyl disulfide": ("CSSC", (1, 2)),
    "methyl acetate": ("COC(C)=O", (1, 2)),
    "isopentane": ("CCC(C)C", (1, 2)),
    "1-butene": ("C=CCC", (1, 2)),
    "propanethiol": ("CCCS", (1, 2)),
    "diethyl sulfide": ("CCSCC", (1, 2)),
    "chloroprene": ("C=CC(=C)Cl", (1, 2)),
}


def scan(name: str) -> tuple[list[Structure], list[float]]:
    """Structures over a full turn, and their energies with GFN2-xTB."""
    smiles, (near, far) = ROTORS[name]
    structure = from_smiles(smiles)
    mask = beyond(structure, near, far)
    apart = np.linalg.norm(structure.positions - structure.positions[[near, far]][:, None], axis=2)
    apart[:, [near, far]] = np.inf
    four = [int(np.where(mask, np.inf, apart[0]).argmin()), near, far, int(np.where(mask, apart[1], np.inf).argmin())]
    structures = [turned(structure, four, degrees, mask) for degrees in range(0, 360, SPACING)]
    return structures, [gfn2(turn)[0] for turn in structures]


def rotors(network: Network, workers: Workers, subsets: dict[str, str]) -> list[dict[str, Any]]:
    """The highest point of each curve over its lowest, and the difference of the curves, kcal/mol."""
    rows = []
    for (name, (smiles, _)), (structures, theirs) in zip(ROTORS.items(), workers.map(scan, ROTORS), strict=True):
        ours = np.array([network(structure)[0] for structure in structures]) / KCAL_PER_MOL
        wanted = np.array(theirs) / KCAL_PER_MOL
        difference = (ours - ours.mean()) - (wanted - wanted.mean())
        rows.append(
            {
                "molecule": name,
                "smiles": smiles,
                "subset": subsets.get(smiles, "none"),
                "gfn2": float(np.ptp(wanted)),
                "network": float(np.ptp(ours)),
                "rmse": float(np.sqrt((difference**2).mean())),
            }
        )
    return rows
