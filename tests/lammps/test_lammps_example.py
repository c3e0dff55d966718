"""The example's files."""

import numpy as np
import pytest
from ase import Atoms
from ase.io import read

from torchmdx.lammps.example import data_file, water, write_example


def test_the_example_is_liquid_water(tmp_path):
    data, text = write_example(tmp_path / "new", molecules=27)
    atoms = read(data, format="lammps-data", atom_style="atomic")
    assert sorted(set(atoms.get_chemical_symbols())) == ["H", "O"]
    assert len(atoms) == 81
    density = atoms.get_masses().sum() / atoms.get_volume() * 1.66054
    assert density == pytest.approx(1.0, abs=0.01)
    assert "pair_style      torchmdx organic-1" in text.read_text()
    with pytest.raises(FileExistsError, match="choose another folder"):
        write_example(tmp_path / "new")


def test_data_files_keep_positions_and_tilted_cells(tmp_path):
    atoms = water(8)
    atoms.set_cell([[8, 0, 0], [1, 7, 0], [-1, 0.5, 9]])
    (tmp_path / "data").write_text(data_file(atoms, ["H", "O"], "test"))
    again = read(tmp_path / "data", format="lammps-data", atom_style="atomic")
    assert np.allclose(again.positions, atoms.positions, atol=1e-13)
    assert np.allclose(again.cell.array, atoms.cell.array, atol=1e-14)


def test_other_orientations_of_the_cell_are_refused():
    with pytest.raises(ValueError, match="LAMMPS needs a cell with a along x"):
        data_file(Atoms("H", cell=[[0, 3, 0], [3, 0, 0], [0, 0, 3]]), ["H"], "test")
