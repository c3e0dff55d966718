"""Starting geometries of molecules written as SMILES, with RDKit."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np

from torchmdx.labelling.geometry import Geometry

MOST_STEPS = 1000  # of the force field's minimisation


def require_rdkit() -> None:
    """Raises ImportError that says how to get RDKit."""
    if importlib.util.find_spec("rdkit") is None:
        raise ImportError("SMILES need RDKit, which is not installed: pip install 'torchmdx[label]'")


def check_smiles(smiles: str) -> None:
    """Raises ValueError if RDKit does not understand it."""
    _molecule(smiles)


def conformers(smiles: str, count: int, seed: int, multiplicity: int | None = None) -> list[Geometry]:
    """Up to `count` conformers: ETKDG, then minimised with MMFF, or UFF where MMFF does not know an atom.

    The charge is that of the SMILES. Raises ValueError if there is no conformer at all.
    """
    from rdkit import Chem
    from rdkit.Chem import rdDistGeom

    molecule = _molecule(smiles)
    parameters: Any = rdDistGeom.ETKDGv3()
    parameters.randomSeed = seed
    parameters.numThreads = 1
    found = list(rdDistGeom.EmbedMultipleConfs(molecule, count, parameters))
    if not found:
        parameters.useRandomCoords = True  # for cages and rings that distances alone do not fold
        found = list(rdDistGeom.EmbedMultipleConfs(molecule, count, parameters))
    if not found:
        raise ValueError(f"RDKit finds no conformer of {smiles!r}")
    _minimise(molecule)
    numbers = np.array([atom.GetAtomicNum() for atom in molecule.GetAtoms()], np.int64)
    charge = float(Chem.GetFormalCharge(molecule))
    return [
        Geometry(
            numbers=numbers,
            positions=np.array(molecule.GetConformer(number).GetPositions(), np.float64),
            cell=np.zeros((3, 3)),
            pbc=np.zeros(3, bool),
            charge=charge,
            multiplicity=multiplicity,
        )
        for number in found
    ]


def _molecule(smiles: str) -> Any:
    from rdkit import Chem, rdBase

    rdBase.DisableLog("rdApp.*")  # what is wrong is said by the error
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
