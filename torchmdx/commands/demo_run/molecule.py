"""Alanine dipeptide: its PDB file, atoms and their names."""

from __future__ import annotations

from importlib.resources import files as package_files
from pathlib import Path

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from torchmdx.dynamics.trajectory_formats import AtomNames
from torchmdx.report.view.torsions import Quartet
from torchmdx.structures.files import read_structure

FILE = "alanine_dipeptide.pdb"
COORDINATES = slice(30, 54)  # columns of a line

Floats = NDArray[np.float64]


class DemoMolecule:
    """The molecule of a PDB file of the package, which is copied to a path."""

    def __init__(self, copy: Path) -> None:
        self.text = package_files("torchmdx.commands.demo_run").joinpath(FILE).read_text()
        copy.write_text(self.text)
        self.atoms: Atoms = read_structure(str(copy), "-1")
        names = AtomNames.of_arrays(self.atoms.arrays)
        assert names is not None
        self.names = names

    def labels(self) -> list[str]:
        """Labels of the atoms as "ALA 2 CA"."""
        given = zip(self.names.residues, self.names.residue_numbers, self.names.names, strict=True)
        return [f"{residue} {number} {name}" for residue, number, name in given]

    def atoms_named(self, wanted: tuple[tuple[str, str], ...]) -> Quartet:
        """Indices of four atoms by residue and name."""
        places = list(zip(self.names.residues, self.names.names, strict=True))
        first, second, third, fourth = (places.index(name) for name in wanted)
        return first, second, third, fourth

    def write(self, path: Path, positions: Floats) -> None:
        """Writes the file with other positions [N,3] Å."""
        lines = self.text.splitlines(keepends=True)
        rows = (k for k, line in enumerate(lines) if line.startswith("ATOM"))
        for k, row in zip(rows, positions.tolist(), strict=True):
            texts = "".join(f"{value:8.3f}" for value in row)
            lines[k] = lines[k][: COORDINATES.start] + texts + lines[k][COORDINATES.stop :]
        path.write_text("".join(lines))
