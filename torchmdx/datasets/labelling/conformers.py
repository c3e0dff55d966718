"""Starting geometries of molecules written as SMILES, with RDKit."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchmdx.datasets.labelling.geometry import UnlabelledStructure
from torchmdx.runtime.optional_package import require_package

MOST_STEPS = 1000  # of the force field's minimisation
TRIES, MORE_TRIES = 3, 10  # embeddings per requested conformer, and in addition: many reach the same minimum
SAME_SHAPE = 0.05  # Å: root mean square difference of distances below which two conformers are one


def require_rdkit() -> None:
    """Raises ImportError that says how to install RDKit."""
    require_package("rdkit", "SMILES need", "label", "RDKit")


def check_smiles(smiles: str) -> None:
    """Raises ValueError if RDKit does not understand it."""
    _molecule(smiles)


def conformers(smiles: str, count: int, seed: int, multiplicity: int | None = None) -> list[UnlabelledStructure]:
    """Up to `count` distinct conformers: ETKDG, then minimised with MMFF, or UFF for atoms that MMFF does not know.

    Mirror images, and the same shape with atoms of an element exchanged, count as one. The charge is that of the
    SMILES.

    Raises:
        ValueError: If there is no conformer at all.
    """
    from rdkit import Chem
    from rdkit.Chem import rdDistGeom

    molecule = _molecule(smiles)
    parameters: Any = rdDistGeom.ETKDGv3()
    parameters.randomSeed = seed
    parameters.numThreads = 1
    num_tries = TRIES * count + MORE_TRIES
    found = list(rdDistGeom.EmbedMultipleConfs(molecule, num_tries, parameters))
    if not found:
        parameters.useRandomCoords = True  # for cages and rings that embedding from distances fails on
        found = list(rdDistGeom.EmbedMultipleConfs(molecule, num_tries, parameters))
    if not found:
        raise ValueError(f"RDKit finds no conformer of {smiles!r}")
    _minimise(molecule)
    numbers = np.array([atom.GetAtomicNum() for atom in molecule.GetAtoms()], np.int64)
    charge = float(Chem.GetFormalCharge(molecule))
    shapes = [np.array(molecule.GetConformer(number).GetPositions(), np.float64) for number in found]
    none = np.zeros((3, 3))
    return [
        UnlabelledStructure(numbers, positions, none, np.zeros(3, bool), charge, multiplicity)
        for positions in _distinct(numbers, shapes)[:count]
    ]


def _molecule(smiles: str) -> Any:
    from rdkit import Chem, rdBase

    rdBase.DisableLog("rdApp.*")  # the error reports the problem
    molecule = Chem.MolFromSmiles(smiles)
    if molecule is None or not molecule.GetNumAtoms():
        raise ValueError(f"a molecule must be a SMILES that RDKit understands, got {smiles!r}")
    return Chem.AddHs(molecule)


def _minimise(molecule: Any) -> None:
    from rdkit.Chem import rdForceFieldHelpers as fields

    if fields.MMFFHasAllMoleculeParams(molecule):
        fields.MMFFOptimizeMoleculeConfs(molecule, numThreads=1, maxIters=MOST_STEPS)
    elif fields.UFFHasAllMoleculeParams(molecule):
        fields.UFFOptimizeMoleculeConfs(molecule, numThreads=1, maxIters=MOST_STEPS)


def _distinct(numbers: np.ndarray, shapes: list[np.ndarray]) -> list[np.ndarray]:
    """Positions whose sorted distances between atoms of each pair of elements differ."""
    first, second = np.triu_indices(len(numbers), 1)
    pairs = np.sort(np.stack([numbers[first], numbers[second]]), axis=0)
    kept: list[np.ndarray] = []
    kept_distances: list[np.ndarray] = []
    for positions in shapes:
        distances = np.linalg.norm(positions[first] - positions[second], axis=1)
        distances = distances[np.lexsort((distances, pairs[1], pairs[0]))]
        limit = SAME_SHAPE**2 * len(distances)
        if not any(((distances - other) ** 2).sum() <= limit for other in kept_distances):
            kept.append(positions)
            kept_distances.append(distances)
    return kept
