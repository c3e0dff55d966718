"""Structures to measure on: periodic water of liquid density, molecules from PDB files, and a peptide in water."""

from __future__ import annotations

from pathlib import Path

import numpy as np

STRUCTURES = Path(__file__).with_name("structures")
# Molecules in an Å³ of water at 298 K.
WATER_DENSITY = 0.0334


def water(num_molecules: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(numbers, positions, cell) of a cubic box of molecules on a grid, each turned at random."""
    rng = np.random.default_rng(seed)
    length = (num_molecules / WATER_DENSITY) ** (1 / 3)
    side = int(np.ceil(num_molecules ** (1 / 3) - 1e-9))
    grid = np.stack(np.meshgrid(*[np.arange(side)] * 3, indexing="ij"), -1).reshape(-1, 3)[:num_molecules]
    shape = np.array([[0.0, 0, 0], [0.9572, 0, 0], [-0.2400, 0.9266, 0]])
    turns = np.linalg.qr(rng.normal(size=(num_molecules, 3, 3)))[0]
    atoms = (grid + 0.5)[:, None] * (length / side) + np.einsum("nij,kj->nki", turns, shape)
    return np.tile([8, 1, 1], num_molecules), atoms.reshape(-1, 3), np.eye(3) * length


def peptide_in_water(num_molecules: int = 768, room: float = 2.4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Alanine dipeptide in the middle of a box of water, without the molecules that are closer than `room` Å to it."""
    peptide, positions, _ = load("alanine_dipeptide")
    numbers, waters, cell = water(num_molecules)
    positions = positions - positions.mean(0) + cell.sum(0) / 2
    distances = np.linalg.norm(waters[:, None] - positions, axis=-1).min(1)
    kept = np.repeat(distances.reshape(-1, 3).min(1) >= room, 3)
    return np.concatenate([peptide, numbers[kept]]), np.concatenate([positions, waters[kept]]), cell


def load(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """A structure by name: "water3000" has 3,000 molecules; most others are PDB files of this folder, in vacuum."""
    if name == "peptide_in_water":
        return peptide_in_water()
    if name.startswith("water"):
        return water(int(name.removeprefix("water")))
    from ase.io import read

    atoms = read(STRUCTURES / f"{name}.pdb", index=0)
    return atoms.numbers, atoms.positions, None
