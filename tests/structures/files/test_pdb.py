"""PDB files: models, boxes, elements, charges, alternate locations, and names that repeat."""

import ase.io
import numpy as np
import pytest
from ase.build import molecule

from torchmdx.structures.files import read_records, read_structures
from torchmdx.structures.files.pdb import with_unique_names, without_alternates

BOX = "CRYST1   20.000   21.000   22.000  90.00  90.00  90.00 P 1           1\n"
ION = """\
HETATM    1  N   NH4 A   1       0.000   0.000   0.000  1.00  0.00           N1+
HETATM    2 CA    CA A   2       5.000   0.000   0.000  1.00  0.00          CA2+
HETATM    3  O   OXY A   3       9.000   0.000   0.000  1.00  0.00           O1-
"""
ALTERNATES = """\
ATOM      1  CA AALA A   1       0.000   0.000   0.000  0.50  0.00           C
ATOM      2  CA BALA A   1       0.300   0.000   0.000  0.50  0.00           C
ATOM      3  N   ALA A   1       2.000   0.000   0.000  1.00  0.00           N
"""


def test_every_model_has_the_box_and_its_charge(tmp_path):
    path = tmp_path / "ions.pdb"
    path.write_text(
        f"{BOX}MODEL        1\n{ION}ENDMDL\nMODEL        2\n{ION.replace('0.000  1.00', '1.000  1.00')}ENDMDL\nEND\n"
    )
    records = read_records(str(path), ":")
    assert len(records) == 2
    for number, record in enumerate(records):
        assert str(record.atoms.symbols) == "NCaO"
        np.testing.assert_allclose(record.atoms.cell.lengths(), [20, 21, 22])
        np.testing.assert_allclose(record.atoms.positions[:, 2], number)
        assert (record.charge, record.charge_from) == (2, "sum of formal charges")
    assert records[1].place == "frame 2 of 2 (index 1)"


def test_the_box_of_a_structure_that_is_no_crystal_is_a_placeholder(tmp_path):
    path = tmp_path / "nmr.pdb"
    path.write_text("CRYST1    1.000    1.000    1.000  90.00  90.00  90.00 P 1           1\n" + ION)
    assert not read_structures(str(path), "0")[0].pbc.any()


def test_elements_come_from_names_if_the_columns_are_empty(tmp_path):
    path = tmp_path / "bare.pdb"
    path.write_text("\n".join(line[:76] for line in (ALTERNATES + ION).splitlines() if "BALA" not in line))
    assert str(read_structures(str(path), "0")[0].symbols) == "CN2CaO"


def test_alternate_locations_are_left_out_with_a_warning(tmp_path):
    path = tmp_path / "two.pdb"
    path.write_text(ALTERNATES)
    with pytest.warns(UserWarning, match="the first of each atom is read, 1 others are left out"):
        (atoms,) = read_structures(str(path), ":")
    np.testing.assert_allclose(atoms.positions[:, 0], [0, 2])
    assert "BALA" not in without_alternates(ALTERNATES)
    assert "AALA" in without_alternates(ALTERNATES)


def test_repeated_names_become_unique_within_a_residue(tmp_path):
    path = tmp_path / "e.pdb"
    ase.io.write(path, molecule("CH3CH2OH"))
    text, num_renamed = with_unique_names(path.read_text())
    names = [line[12:16].strip() for line in text.splitlines() if line.startswith("ATOM")]
    assert num_renamed == 8
    assert names == ["C1", "C2", "O", "H1", "H2", "H3", "H4", "H5", "H6"]
    assert with_unique_names(ION)[1] == 0
    large = "".join(f"{k:>5}".join(("HETATM", "  H   BIG A   1       0.000   0.000   0.000\n")) for k in range(1500))
    text, _ = with_unique_names(large)
    names = [line[12:16] for line in text.splitlines()]
    assert len(set(names)) == 1500
    assert all(line[76:78] == " H" and line[17:20] == "BIG" for line in text.splitlines())
