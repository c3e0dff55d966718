"""Structures for OpenMM: a topology, positions and cell from PDB, mmCIF, or any file that ASE reads."""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from openmm import Vec3, app, unit

from torchmdx.commands.md_openmm.orientation import Orientation, orientation_of
from torchmdx.dynamics.run.motion import fixed_atoms, set_motion, stored_velocities, unread_velocities
from torchmdx.dynamics.run.moving import MovingStructure, record_of, require_movable
from torchmdx.structures.files import Record, pdb
from torchmdx.structures.files.mmcif import is_mmcif
from torchmdx.structures.files.read import CIF
from torchmdx.structures.system import System
from torchmdx.structures.units import NANOMETER

Array = NDArray[np.float64]
SUFFIXES = (".pdb", ".cif", ".xyz")  # of files that `write_structure` writes
MIN_VOLUME_PER_ATOM = 1.0  # Å³; a denser box is a placeholder


@dataclass(frozen=True, eq=False, kw_only=True)
class Structure(MovingStructure):
    """Atoms for OpenMM: positions [N,3] Å, cell [3,3] Å in its orientation or None.

    Attributes:
        suffix: Of a file format that keeps the residues and chains, for `write_structure`.
        notes: What a user should know about the file.
        orientation: Against the file, None for files whose cell is as OpenMM needs it.
    """

    topology: app.Topology
    positions: Array
    cell: Array | None
    notes: tuple[str, ...] = ()
    orientation: Orientation | None = None

    @cached_property
    def system(self) -> System:
        return System.create(self.positions, self.atomic_numbers, self.cell, self.cell is not None, self.record.charge)

    def labels(self) -> list[str] | None:
        if self.suffix == ".xyz":
            return None
        return [f"{atom.residue.name} {atom.residue.id} {atom.name}" for atom in self.topology.atoms()]


def read(options: argparse.Namespace) -> Structure:
    """The structure of the options; PDB and mmCIF keep residues and chains.

    Raises:
        FileNotFoundError: If there is no file.
        ValueError: For files that are unreadable, empty, without elements, or periodic in only one or two directions,
            for constraints that cannot be kept, and for an ensemble that the structure does not fit.
    """
    path, record = options.file, record_of(options)
    suffix = Path(path).suffix.lower()
    if suffix in (".pdb", ".ent"):
        structure = _from_pdb(path, record)
    elif suffix in CIF and is_mmcif(Path(path).read_text(errors="replace")):
        structure = _from_mmcif(path, record)
    else:
        structure = _from_ase(record, options.ignore_constraints)
    if structure.cell is not None:
        volume = abs(float(np.linalg.det(structure.cell)))
        if volume < MIN_VOLUME_PER_ATOM * structure.num_atoms:
            raise ValueError(
                f"the box of {path!r} must have at least {MIN_VOLUME_PER_ATOM:g} Å³ per atom for its "
                f"{structure.num_atoms} atoms, got {volume:.3g} Å³ in total; --vacuum ignores the box"
            )
    _require_ensemble(structure, options.ensemble, path)
    return structure.with_hydrogens_of(options.hydrogen_mass)


def _require_ensemble(structure: Structure, ensemble: str, file: str) -> None:
    """Raises ValueError for a barostat without a box, or with fixed atoms, and if nothing can move."""
    if ensemble == "npt" and structure.cell is None:
        raise ValueError(f"--ensemble npt needs a periodic structure, got {file!r} without a box")
    if ensemble == "npt" and structure.fixed.any():
        raise ValueError(
            f"--ensemble npt moves all atoms with the box and cannot keep {int(structure.fixed.sum())} atoms of "
            f"{file!r} fixed; --ignore-constraints moves them"
        )
    require_movable(structure, file)


def write_structure(
    structure: Structure, path: Path, positions: Array, cell: Array | None, velocities: Array | None = None
) -> None:
    """Writes positions and cell, as OpenMM has them, in the format of `structure.suffix`.

    XYZ files are in the orientation of the structure's file, and have velocities [N,3] Å/fs.
    """
    if structure.suffix == ".xyz":
        import ase.io
        from ase import Atoms

        if structure.orientation is not None and cell is not None:
            turn = structure.orientation
            positions, cell = turn.back(positions), turn.cell_back(cell)
            velocities = None if velocities is None else turn.back(velocities)
        atoms = Atoms(structure.atomic_numbers, positions, cell=cell, pbc=cell is not None)
        set_motion(atoms, structure.masses, structure.fixed, velocities, structure.record.charge)
        ase.io.write(path, atoms, format="extxyz")
        return
    writer = app.PDBFile if structure.suffix == ".pdb" else app.PDBxFile
    if cell is not None:
        structure.topology.setPeriodicBoxVectors([Vec3(*row) for row in cell / NANOMETER] * unit.nanometer)
    with path.open("w", encoding="utf-8") as file:
        writer.writeFile(structure.topology, positions / NANOMETER * unit.nanometer, file, keepIds=True)


def _from_pdb(path: str, record: Record) -> Structure:
    text = pdb.without_alternates(Path(path).read_text(encoding="utf-8", errors="replace"))
    text, num_renamed = pdb.with_unique_names(text)  # OpenMM would drop atoms whose names repeat within a residue
    note = f"names of {num_renamed} atoms repeat within a residue; the final structure numbers them"
    with _naming_openmm(path):
        file = app.PDBFile(io.StringIO(text))
    return _from_openmm(path, file, record, ".pdb", (note,) * (num_renamed > 0))


def _from_mmcif(path: str, record: Record) -> Structure:
    # Given a path, the reader leaves the file open when it fails.
    with _naming_openmm(path), open(path, encoding="utf-8") as text:
        file = app.PDBxFile(text)
    return _from_openmm(path, file, record, ".cif", ())


def _from_openmm(path: str, file: Any, record: Record, suffix: str, notes: tuple[str, ...]) -> Structure:
    """The record, with the residues and chains that OpenMM has read. Raises ValueError if OpenMM left out atoms."""
    topology, atoms = file.topology, record.atoms
    elements = [atom.element for atom in topology.atoms()]
    numbers = [0 if element is None else element.atomic_number for element in elements]
    if numbers != atoms.numbers.tolist():
        raise ValueError(
            f"OpenMM must read the {len(atoms)} atoms of {path!r}, got {len(numbers)}"
            + " with other elements" * (len(numbers) == len(atoms))
            + "; convert the file to another format"
        )
    vectors = None
    if not atoms.pbc.any():
        topology.setPeriodicBoxVectors(None)
    else:
        vectors = topology.getPeriodicBoxVectors()
    return Structure(
        record=record,
        topology=topology,
        positions=atoms.positions.astype(np.float64),
        cell=None if vectors is None else np.array(vectors.value_in_unit(unit.angstrom), dtype=np.float64),
        masses=np.array([element.mass.value_in_unit(unit.dalton) for element in elements]),
        fixed=np.zeros(len(atoms), dtype=bool),
        suffix=suffix,
        notes=notes,
    )


@contextmanager
def _naming_openmm(path: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the readers raise many kinds of errors
        raise ValueError(f"OpenMM cannot read {path!r}: {type(error).__name__}: {error}") from error


def _from_ase(record: Record, ignore_constraints: bool) -> Structure:
    atoms = record.atoms
    periodic = bool(atoms.pbc.all())
    if atoms.pbc.any() and not periodic:
        raise ValueError(
            "OpenMM needs a structure that is periodic in all three directions or in none, "
            f"got pbc {atoms.pbc.tolist()}; --vacuum ignores the box"
        )
    positions, cell, turn = atoms.positions.astype(np.float64), None, None
    velocities, unread = stored_velocities(atoms), unread_velocities(atoms)
    notes = []
    if periodic:
        if abs(float(np.linalg.det(atoms.cell.array))) == 0:
            raise ValueError(f"a periodic structure needs a cell with a volume, got {atoms.cell.array.tolist()}")
        cell, turn = orientation_of(atoms.cell.array.astype(np.float64))
        positions = turn.turned(positions)
        velocities = None if velocities is None else turn.turned(velocities)
        if turn.is_rotated:
            notes.append(
                "OpenMM needs a along x and b in the xy plane: the run and its trajectory are rotated; the final "
                "structure is in the orientation of the file"
            )
    topology = _topology([int(number) for number in atoms.numbers])
    if cell is not None:
        topology.setPeriodicBoxVectors([Vec3(*row) for row in cell / NANOMETER] * unit.nanometer)
    if unread is not None and velocities is None:
        notes.append(f"the column {unread!r} of the file is not read, since its unit is unknown; ASE stores momenta")
    return Structure(
        record=record,
        topology=topology,
        positions=positions,
        cell=cell,
        masses=atoms.get_masses().astype(np.float64),
        fixed=fixed_atoms(atoms, ignore=ignore_constraints),
        velocities=velocities,
        notes=tuple(notes),
        orientation=turn,
    )


def _topology(atomic_numbers: list[int]) -> app.Topology:
    """A topology of one chain with one residue for all atoms."""
    topology = app.Topology()
    residue = topology.addResidue("MOL", topology.addChain())
    for index, number in enumerate(atomic_numbers):
        try:
            element = app.Element.getByAtomicNumber(number)
        except KeyError:
            raise ValueError(
                f"every atom needs an element known to OpenMM, got atomic number {number} for atom {index}"
            ) from None
        topology.addAtom(f"{element.symbol}{index + 1}", element, residue)
    return topology
