"""Molecules of dynamics.py: bonds, masses, and whether bonds have changed. Needs ASE."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import ase
import ase.io
import numpy as np
from ase.data import atomic_masses, chemical_symbols, covalent_radii

HYDROGEN = 3.0  # amu; methyl carbons keep 6
BOND, BROKEN = 1.3, 1.6  # a bond: in covalent radii; broken: in lengths at the start


@dataclass
class Molecule:
    """One of the molecules, and its outcome. masses amu; bonds [B,2], lengths [B] Å; fault: what happened first."""

    name: str
    charge: int
    numbers: np.ndarray
    positions: np.ndarray
    masses: np.ndarray
    bonds: np.ndarray
    lengths: np.ndarray
    fault: str | None = None
    ended_ps: float | None = None
    longest: float = 1.0  # of a bond over its length at the start
    temperatures: list[float] = field(default_factory=list)

    def check(self, positions: np.ndarray) -> str | None:
        """The first changed bond at these positions; None if there is none."""
        apart = np.linalg.norm(positions[:, None] - positions[None], axis=-1)
        ratio = apart[self.bonds[:, 0], self.bonds[:, 1]] / self.lengths
        self.longest = max(self.longest, float(ratio.max()))
        if ratio.max() > BROKEN:
            a, b = self.bonds[int(ratio.argmax())]
            return f"bond {self._atom(a)}–{self._atom(b)} broken"
        radii = covalent_radii[self.numbers]
        near = np.triu(apart < BOND * np.add.outer(radii, radii), 1) & self.far
        if near.any():
            a, b = np.argwhere(near)[0]
            return f"bond {self._atom(a)}–{self._atom(b)} formed"
        return None

    @cached_property
    def far(self) -> np.ndarray:
        """Pairs [N,N] three bonds apart or more: those of one or two come near in any vibration."""
        joined = np.zeros((len(self.numbers),) * 2, int)
        joined[self.bonds[:, 0], self.bonds[:, 1]] = joined[self.bonds[:, 1], self.bonds[:, 0]] = 1
        return (joined + joined @ joined) == 0

    def _atom(self, index: int) -> str:
        return f"{chemical_symbols[self.numbers[index]]}{index}"


def weights_hash(file: Path) -> str:
    """SHA-256 of a safetensors file behind its header: of the weights, whatever name and description it has."""
    content = file.read_bytes()
    return hashlib.sha256(content[8 + int.from_bytes(content[:8], "little") :]).hexdigest()


def part_of(molecules: list[Molecule], part: str) -> list[Molecule]:
    """Part "K/N" of the molecules, K from 1: those of one charge together, which share a force."""
    which, number = (int(word) for word in part.split("/"))
    if not 1 <= which <= number <= len(molecules):
        raise ValueError(f"a part must be K/N with 1 <= K <= N <= {len(molecules)}, got {part!r}")
    ordered = sorted(molecules, key=lambda m: m.charge)
    return ordered[(which - 1) * len(ordered) // number : which * len(ordered) // number]


def joined(parts: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    """One record of those of all parts, molecules in the order of names; times are those of the slowest."""
    own = ("reached_ps", "seconds", "ns_per_day", "atoms", "molecules")
    for part in parts[1:]:
        for key, value in parts[0].items():
            if key not in own and part[key] != value:
                raise ValueError(f"parts must agree in {key!r}, got {value!r} and {part[key]!r}")
    rows = {row["molecule"]: row for part in parts for row in part["molecules"]}
    if sorted(rows) != sorted(names) or sum(len(part["molecules"]) for part in parts) != len(names):
        raise ValueError(f"parts must have each of the {len(names)} molecules once, got {len(rows)} molecules")
    speeds = [part["ns_per_day"] for part in parts]
    return parts[0] | {
        "contexts": len(parts),
        "reached_ps": min(part["reached_ps"] for part in parts),
        "seconds": max(part["seconds"] for part in parts),
        "ns_per_day": min(speeds) if all(speeds) else None,
        "atoms": sum(part["atoms"] for part in parts),
        "molecules": [rows[name] for name in names],
    }


def heavy_hydrogens(atoms: ase.Atoms, hydrogen: float) -> tuple[np.ndarray, np.ndarray]:
    """Masses, amu, and bonds [B,2]. What hydrogens have more than their own mass is taken from their neighbours."""
    radii = covalent_radii[atoms.numbers]
    bonds = np.argwhere(np.triu(atoms.get_all_distances() < BOND * np.add.outer(radii, radii), 1))
    masses = atomic_masses[atoms.numbers].copy()
    for a, b in [*bonds, *bonds[:, ::-1]]:
        if atoms.numbers[a] == 1 and atoms.numbers[b] != 1 and masses[a] < hydrogen:
            masses[b] -= hydrogen - masses[a]
            masses[a] = hydrogen
    return masses, bonds


def read_molecules(path: Path) -> list[Molecule]:
    """The start structures with their bonds and masses. A hydrogen's mass is taken from its neighbour."""
    found = []
    for atoms in ase.io.read(path, index=":"):
        masses, bonds = heavy_hydrogens(atoms, HYDROGEN)
        lengths = atoms.get_all_distances()[bonds[:, 0], bonds[:, 1]]
        charge = int(atoms.info["charge"])
        found.append(
            Molecule(str(atoms.info["molecule"]), charge, atoms.numbers, atoms.positions, masses, bonds, lengths)
        )
    return found
