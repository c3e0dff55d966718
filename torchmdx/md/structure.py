"""Structures for OpenMM: a topology, positions and cell from PDB, mmCIF, or any file that ASE reads."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from openmm import Vec3, app, unit

from torchmdx.structure_files import read_structure
from torchmdx.system import checked_charge
from torchmdx.units import NANOMETER

if TYPE_CHECKING:
    from ase import Atoms

Array = NDArray[np.float64]
SUFFIXES = (".pdb", ".cif", ".xyz")  # of files that `write_structure` writes
MIN_VOLUME_PER_ATOM = 1.0  # Å³; a denser box is a placeholder


@dataclass(frozen=True, eq=False)
class Structure:
    """Atoms for OpenMM: positions [N,3] Å, cell [3,3] Å in its orientation or None, masses [N] amu.

    suffix: of a file format that keeps the residues and chains, for `write_structure`.
    """

    topology: app.Topology
    positions: Array
    cell: Array | None
    atomic_numbers: NDArray[np.int64]
    masses: Array
    charge: float
    suffix: str

    @property
    def num_atoms(self) -> int:
        return len(self.masses)

    def labels(self) -> list[str] | None:
        """Labels of the atoms as "ALA 2 CA"; None for a structure without residues."""
        if self.suffix == ".xyz":
            return None
        return [f"{atom.residue.name} {atom.residue.id} {atom.name}" for atom in self.topology.atoms()]

    @property
    def formula(self) -> str:
        from ase.formula import Formula
        from ase.symbols import Symbols

        return str(Formula(Symbols(self.atomic_numbers).get_chemical_formula()))


def read(path: str, *, index: str = "-1", charge: float | None = None, vacuum: bool = False) -> Structure:
    """The structure at an index of a file; PDB and mmCIF keep residues and chains.

    charge: in e; None: from the file, else 0. vacuum: ignore the box of the file. Raises FileNotFoundError; ValueError
    for files that are unreadable, empty, without elements, or periodic in only one or two directions.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no structure file at {path!r}")
    reader = _reader(path)
    if reader is None:
        structure = _from_ase(read_structure(path, index), charge, vacuum)
    else:
        structure = _from_openmm(reader, path, index, charge, vacuum)
    if structure.cell is not None:
        volume = abs(float(np.linalg.det(structure.cell)))
        if volume < MIN_VOLUME_PER_ATOM * structure.num_atoms:
            raise ValueError(
                f"the box of {path!r} must have at least {MIN_VOLUME_PER_ATOM:g} Å³ per atom for its "
                f"{structure.num_atoms} atoms, got {volume:.3g} Å³ in total; --vacuum ignores the box"
            )
    return structure


def write_structure(structure: Structure, path: Path, positions: Array, cell: Array | None) -> None:
    """Writes positions and cell in the format of `structure.suffix`."""
    if structure.suffix == ".xyz":
        import ase.io
        from ase import Atoms

        atoms = Atoms(structure.atomic_numbers, positions, cell=cell, pbc=cell is not None)
        atoms.info["charge"] = structure.charge
        ase.io.write(path, atoms, format="extxyz")
        return
    writer = app.PDBFile if structure.suffix == ".pdb" else app.PDBxFile
    if cell is not None:
        structure.topology.setPeriodicBoxVectors([Vec3(*row) for row in cell / NANOMETER] * unit.nanometer)
    with path.open("w", encoding="utf-8") as file:
        writer.writeFile(structure.topology, positions / NANOMETER * unit.nanometer, file, keepIds=True)


def _reader(path: str) -> Any:
    """OpenMM's reader for the format of a file; None for ASE, which reads CIF files of crystals (`_atom_site_...`)."""
    suffix = Path(path).suffix.lower()
    if suffix in (".pdb", ".ent"):
        return app.PDBFile
    if suffix in (".cif", ".mmcif", ".pdbx") and "_atom_site." in Path(path).read_text(errors="replace"):
        return app.PDBxFile
    return None


def _from_openmm(reader: Any, path: str, index: str, charge: float | None, vacuum: bool) -> Structure:
    try:
        with open(path, encoding="utf-8") as text:  # given a path, the readers leave the file open when they fail
            file = reader(text)
        frames = [file.getPositions(asNumpy=True, frame=frame) for frame in range(file.getNumFrames())]
    except Exception as error:  # the readers raise many kinds of errors
        raise ValueError(f"OpenMM cannot read {path!r}: {type(error).__name__}: {error}") from error
    topology: app.Topology = file.topology
    if not topology.getNumAtoms():
        raise ValueError(f"{path!r} has no atoms")
    try:
        positions = frames[operator.index(int(index))]
    except (ValueError, IndexError) as error:
        raise ValueError(
            f"--index must be the index of one of the {len(frames)} models of {path!r}, got {index!r}"
        ) from error
    for atom in topology.atoms():
        if atom.element is None or not atom.element.atomic_number:
            raise ValueError(
                f"every atom needs an element, got none for atom {atom.index} ({atom.name!r} of residue "
                f"{atom.residue.name} {atom.residue.id}) in {path!r}; a PDB file has it in columns 77-78"
            )
    if vacuum:
        topology.setPeriodicBoxVectors(None)
    vectors = topology.getPeriodicBoxVectors()
    elements = [atom.element for atom in topology.atoms()]
    return Structure(
        topology=topology,
        positions=np.array(positions.value_in_unit(unit.angstrom), dtype=np.float64),
        cell=None if vectors is None else np.array(vectors.value_in_unit(unit.angstrom), dtype=np.float64),
        atomic_numbers=np.array([element.atomic_number for element in elements], dtype=np.int64),
        masses=np.array([element.mass.value_in_unit(unit.dalton) for element in elements]),
        charge=checked_charge(0.0 if charge is None else charge),
        suffix=".pdb" if reader is app.PDBFile else ".cif",
    )


def _from_ase(atoms: Atoms, charge: float | None, vacuum: bool) -> Structure:
    periodic = bool(atoms.pbc.all()) and not vacuum
    if atoms.pbc.any() and not atoms.pbc.all() and not vacuum:
        raise ValueError(
            "OpenMM needs a structure that is periodic in all three directions or in none, "
            f"got pbc {atoms.pbc.tolist()}; --vacuum ignores the box"
        )
    positions, cell = atoms.positions.astype(np.float64), None
    if periodic:
        if abs(float(np.linalg.det(atoms.cell.array))) == 0:
            raise ValueError(f"a periodic structure needs a cell with a volume, got {atoms.cell.array.tolist()}")
        positions, cell = oriented(positions, atoms.cell.array)
    topology = _topology([int(number) for number in atoms.numbers])
    if cell is not None:
        topology.setPeriodicBoxVectors([Vec3(*row) for row in cell / NANOMETER] * unit.nanometer)
    return Structure(
        topology=topology,
        positions=positions,
        cell=cell,
        atomic_numbers=atoms.numbers.astype(np.int64),
        masses=atoms.get_masses().astype(np.float64),
        charge=checked_charge(atoms.info.get("charge", 0) if charge is None else charge),
        suffix=".xyz",
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


def oriented(positions: Array, cell: Array) -> tuple[Array, Array]:
    """The crystal in the orientation of OpenMM: a along x, b in the xy plane, off-diagonals at most half the diagonal.

    positions [N,3], cell [3,3] of either handedness, Å. Rotates, and chooses another basis of the same lattice; never
    a mirror image.
    """
    basis = cell.copy()
    if np.linalg.det(basis) < 0:
        basis[2] = -basis[2]
    lower = np.linalg.cholesky(basis @ basis.T)
    rotation = np.linalg.solve(lower, basis)  # basis = lower @ rotation
    a, b, c = lower
    c = c - b * np.round(c[1] / b[1])
    c = c - a * np.round(c[0] / a[0])
    b = b - a * np.round(b[0] / a[0])
    return positions @ rotation.T, np.array([a, b, c])
