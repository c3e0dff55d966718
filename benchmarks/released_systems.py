"""The released potentials and the systems that benchmarks evaluate with them."""

from __future__ import annotations

from pathlib import Path

import ase
import numpy as np
from ase.build import bulk, molecule

from benchmarks import matgl_steps, systems

STRUCTURES = ("toluene", "alanine_dipeptide", "chignolin", "dhfr", "peptide_in_water")
CUTOFFS = {"peptide_in_water 12 Å": 12.0}  # of Coulomb energies
CRYSTALS = {"Si 8": ("Si", 1), "Cu 4": ("Cu", 1), "Fe 2": ("Fe", 1), "Fe 54": ("Fe", 3), "Si 216": ("Si", 3)}
POTENTIALS = {
    "organic-1": STRUCTURES,
    "aceff-1.1": STRUCTURES,
    "aceff-2.0": (*STRUCTURES, *CUTOFFS),
    "TensorNet-MatPES-PBE-v2025.1-PES": tuple(CRYSTALS),
}


def toluene() -> ase.Atoms:
    """Benzene with one hydrogen replaced by a methyl group, whose bonds are at tetrahedral angles."""
    ring = molecule("C6H6")
    carbon, hydrogen = ring.positions[0], ring.positions[6]
    out = (hydrogen - carbon) / np.linalg.norm(hydrogen - carbon)
    side = np.cross(out, [0.0, 0.0, 1.0])
    methyl = carbon + 1.51 * out
    del ring[6]
    for angle in (90, 210, 330):
        turned = np.cos(np.radians(angle)) * side + np.sin(np.radians(angle)) * np.array([0.0, 0.0, 1.0])
        ring += ase.Atom("H", methyl + 1.09 * (out / 3 + np.sqrt(8) / 3 * turned))
    return ring + ase.Atoms("C", [methyl])


def structure(name: str) -> ase.Atoms:
    """A system of a row."""
    if name == "toluene":
        return toluene()
    if name in CRYSTALS:
        element, cells = CRYSTALS[name]
        return matgl_steps.displaced(bulk(element, cubic=True) * (cells, cells, cells))
    numbers, positions, cell = systems.load(name.split()[0])
    return ase.Atoms(numbers, positions, cell=cell, pbc=cell is not None)


def kind(name: str) -> str:
    """molecule, protein, box or crystal."""
    if name in CRYSTALS:
        return "crystal"
    found = {"chignolin": "protein", "dhfr": "protein", "peptide_in_water": "box"}
    return found.get(name.split()[0], "molecule")


def find(folder: Path | None, name: str) -> str | Path | None:
    """The file or folder of a potential; None if there is none."""
    if name == "organic-1":
        return name
    found = sorted(folder.rglob(f"{name}.ckpt")) + sorted(folder.rglob(f"{name}/model.json")) if folder else []
    return (found[0].parent if found[0].name == "model.json" else found[0]) if found else None
