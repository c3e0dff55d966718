"""The structure that a run moves: from its file, and back to one."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import ase.io
import numpy as np
from numpy.typing import NDArray

from torchmdx.dynamics.particles import with_heavy_hydrogens
from torchmdx.dynamics.run.motion import fixed_atoms, set_motion, stored_velocities
from torchmdx.dynamics.snapshot import Snapshot
from torchmdx.structures.files import Record, read_record
from torchmdx.structures.system import Batch, System

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class MovingStructure:
    """One structure of a file: masses amu, which atoms are fixed [N], velocities Å/fs or None.

    Attributes:
        scaled: Whether the velocities have been, since the masses are not those of the file.
        suffix: Of a file format for the final structure.
    """

    record: Record
    masses: Floats
    fixed: NDArray[np.bool_]
    velocities: Floats | None = None
    scaled: bool = False
    suffix: str = ".xyz"

    @property
    def atomic_numbers(self) -> NDArray[np.int64]:
        return self.record.atoms.numbers

    @property
    def num_atoms(self) -> int:
        return len(self.masses)

    @cached_property
    def system(self) -> System:
        return System.from_ase(self.record.atoms, self.record.charge)

    def labels(self) -> list[str] | None:
        """Labels of the atoms as "ALA 2 CA"; None without residues."""
        return None

    def with_hydrogens_of(self, mass: float | None) -> Self:
        """The structure with bonded hydrogens of this mass, amu, as for `with_heavy_hydrogens`; None: as it is."""
        if mass is None:
            return self
        masses, velocities = with_heavy_hydrogens(Batch.of(self.system), self.masses, mass, self.velocities, self.fixed)
        scaled = not np.array_equal(masses, self.masses)
        return replace(self, masses=masses, velocities=velocities, scaled=scaled)


def require_movable(structure: MovingStructure, file: str) -> None:
    """Raises ValueError if nothing can move."""
    if structure.fixed.all():
        raise ValueError(
            f"at least one atom must move, but {file!r} fixes all {structure.num_atoms}; see --ignore-constraints"
        )


def record_of(options: argparse.Namespace) -> Record:
    """The structure at an index of a file; without the box of the file, if the options say so."""
    record = read_record(options.file, options.index, options.charge)
    if options.vacuum:
        record.atoms.pbc = False
        record.atoms.cell = None
    return record


def read(options: argparse.Namespace) -> MovingStructure:
    """The structure of the options. Raises FileNotFoundError, and ValueError, also if nothing can move."""
    record = record_of(options)
    atoms = record.atoms
    fixed = fixed_atoms(atoms, ignore=options.ignore_constraints)
    masses, velocities = atoms.get_masses().astype(np.float64), stored_velocities(atoms)
    found = MovingStructure(record=record, masses=masses, fixed=fixed, velocities=velocities)
    require_movable(found, options.file)
    return found.with_hydrogens_of(options.hydrogen_mass)


def write_final(path: Path, moving: MovingStructure, snapshot: Snapshot) -> None:
    """Writes the structures of a snapshot as extended XYZ, with velocities and, if they are special, masses."""
    starts, frames = snapshot.particles.starts, []
    for number, start in enumerate(starts[:-1]):
        own = slice(start, starts[number + 1])
        atoms = moving.record.atoms.copy()
        atoms.positions = snapshot.positions[own]
        if atoms.pbc.all():
            atoms.cell = snapshot.cell[number]
        set_motion(atoms, moving.masses, moving.fixed, snapshot.velocities[own], moving.record.charge)
        atoms.info["replica"] = number
        frames.append(atoms)
    ase.io.write(path, frames, format="extxyz")
