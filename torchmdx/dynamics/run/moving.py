"""The structure that a run of `torchmdx.Dynamics` moves: from its file, and back to one."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import ase.io
import numpy as np
from ase.constraints import FixAtoms
from numpy.typing import NDArray

from torchmdx.dynamics.particles import with_heavy_hydrogens
from torchmdx.dynamics.run.motion import fixed_atoms, set_motion, stored_velocities
from torchmdx.dynamics.snapshot import Snapshot
from torchmdx.structures.files import Record, read_record
from torchmdx.structures.system import Batch, System

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MovingStructure:
    """One structure of a file: masses amu, which atoms are fixed [N], velocities Å/fs or None.

    Attributes:
        scaled: Whether the velocities have been, since the masses are not those of the file.
    """

    record: Record
    system: System
    masses: Floats
    fixed: NDArray[np.bool_]
    velocities: Floats | None
    scaled: bool

    @property
    def atomic_numbers(self) -> NDArray[np.int64]:
        return self.record.atoms.numbers


def read(options: argparse.Namespace, hydrogen_mass: float | None) -> MovingStructure:
    """The structure of the options. hydrogen_mass: amu. Raises ValueError, also if nothing can move."""
    record = read_record(options.file, options.index, options.charge)
    atoms = record.atoms
    if options.vacuum:
        atoms.pbc = False
        atoms.cell = None
    fixed = fixed_atoms(atoms, ignore=options.ignore_constraints)
    if fixed.all():
        raise ValueError(
            f"at least one atom must move, but {options.file!r} fixes all {len(atoms)}; see --ignore-constraints"
        )
    system = System.from_ase(atoms, record.charge)
    masses, velocities = atoms.get_masses().astype(np.float64), stored_velocities(atoms)
    read_masses = masses
    if hydrogen_mass is not None:
        masses, velocities = with_heavy_hydrogens(Batch.of(system), masses, hydrogen_mass, velocities, fixed)
    scaled = not np.array_equal(masses, read_masses)
    return MovingStructure(record, system, masses, fixed, velocities, scaled)


def write_final(path: Path, moving: MovingStructure, snapshot: Snapshot) -> None:
    """Writes the structures of a snapshot as extended XYZ, with velocities and, if they are special, masses."""
    starts, frames = snapshot.particles.starts, []
    for number, start in enumerate(starts[:-1]):
        own = slice(start, starts[number + 1])
        atoms = moving.record.atoms.copy()
        atoms.positions = snapshot.positions[own]
        if atoms.pbc.all():
            atoms.cell = snapshot.cell[number]
        set_motion(atoms, moving.masses, snapshot.velocities[own])
        atoms.info |= {"charge": moving.system.charge, "replica": number}
        atoms.set_constraint(FixAtoms(mask=moving.fixed) if moving.fixed.any() else None)
        frames.append(atoms)
    ase.io.write(path, frames, format="extxyz")
