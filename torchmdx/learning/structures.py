"""Structures of a run: those it starts from, displaced copies of them, and files of them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from torchmdx.datasets.labelling.conformers import check_smiles, conformers, require_rdkit
from torchmdx.datasets.labelling.geometry import UnlabelledStructure
from torchmdx.datasets.labelling.sampling import LARGEST_SEED, draw
from torchmdx.datasets.labelling.sources import StructureFiles, find_files
from torchmdx.learning.sections import StartSection
from torchmdx.runtime.files import write_whole
from torchmdx.structures.system import System
from torchmdx.training.data_section import files_of

Structures = Sequence[UnlabelledStructure]


def starting_structures(start: StartSection) -> tuple[list[UnlabelledStructure], list[str]]:
    """The structures to explore from, and their names: those of files, then conformers of SMILES.

    Raises:
        FileNotFoundError, ValueError, ImportError: For files and SMILES that cannot be read.
    """
    found: list[UnlabelledStructure] = []
    names: list[str] = []
    patterns = files_of(start.structures) or []
    files = StructureFiles(tuple(find_files(patterns)), start.index, start.charge, start.multiplicity)
    for source, path in enumerate(files.paths):
        read = list(files.frames(source))
        if not read:
            raise ValueError(f"{str(path)!r} has no structure at index {start.index!r}")
        found += [structure for _, _, structure in read]
        names += [path.name if len(read) == 1 else f"{path.name}, frame {number}" for number, _, _ in read]
    if start.smiles:
        require_rdkit()
    for number, smiles in enumerate(start.smiles):
        check_smiles(smiles)
        seed = int(np.random.default_rng([start.seed, number]).integers(1, LARGEST_SEED))
        made = conformers(smiles, start.conformers, seed, start.multiplicity)
        found += made
        names += [smiles if len(made) == 1 else f"{smiles}, conformer {place}" for place in range(len(made))]
    return found, names


def first_frames(structures: Structures, start: StartSection, count: int) -> list[UnlabelledStructure]:
    """`count` frames to label before the first round: the structures in turn, then displaced copies of them in turn.

    Copies have normal displacements of atoms and, in periodic directions, a symmetric strain of the cell.
    """
    found: list[UnlabelledStructure] = list(structures[:count])
    rng = np.random.default_rng([start.seed, 1])
    while len(found) < count:
        found.append(_displaced(structures[len(found) % len(structures)], start, rng))
    return found


def _displaced(structure: UnlabelledStructure, start: StartSection, rng: np.random.Generator) -> UnlabelledStructure:
    if structure.pbc.all() and start.strain:
        noise = rng.normal(scale=start.strain, size=(3, 3))
        deformation = np.eye(3) + (noise + noise.T) / 2
        structure = UnlabelledStructure(
            structure.numbers,
            structure.positions @ deformation,
            structure.cell @ deformation,
            structure.pbc,
            structure.charge,
            structure.multiplicity,
        )
    shape = structure.positions.shape
    return structure.moved(draw(structure, lambda: rng.normal(scale=start.rattle, size=shape)))


def system_of(structure: UnlabelledStructure) -> System:
    """The structure as the potential sees it."""
    periodic = bool(structure.pbc.any())
    return System.create(
        structure.positions,
        structure.numbers,
        structure.cell if periodic else None,
        structure.pbc if periodic else None,
        structure.charge,
    )


def write_structures(path: Path, structures: Iterable[UnlabelledStructure]) -> None:
    """Writes an extended XYZ file, with 10 decimal places of positions, atomically."""
    from ase.io.extxyz import write_extxyz

    text = io.StringIO()
    for structure in structures:
        write_extxyz(text, [structure.atoms()], write_results=False)
    write_whole(path, text.getvalue().encode())


def read_structures(path: Path) -> list[UnlabelledStructure]:
    """The structures of a file, in its order."""
    return [structure for _, _, structure in StructureFiles((path,)).frames(0)]
