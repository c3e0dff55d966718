"""mmCIF files: models, charges, boxes, quoted names."""

import numpy as np
import pytest

from torchmdx.structures.files import read_records, read_structures

HEAD = """\
data_made
_cell.length_a   20.0(1)
_cell.length_b   21.0
_cell.length_c   22.0
_cell.angle_alpha   90
_cell.angle_beta    90
_cell.angle_gamma   100
loop_
_atom_site.group_PDB
_atom_site.id
_atom_site.type_symbol
_atom_site.label_atom_id
_atom_site.label_alt_id
_atom_site.label_comp_id
_atom_site.label_asym_id
_atom_site.label_seq_id
_atom_site.Cartn_x
_atom_site.Cartn_y
_atom_site.Cartn_z
_atom_site.pdbx_formal_charge
_atom_site.pdbx_PDB_model_num
"""
ROWS = """\
HETATM 1 O  "O5'" . LIG A 1 0.0 1.0 2.0 -1 1
HETATM 2 CL CL    . CL  B 1 3.0 4.0 5.0 -1 1
HETATM 3 O  "O5'" . LIG A 1 0.5 1.0 2.0 ?  2
HETATM 4 CL CL    . CL  B 1 3.5 4.0 5.0 ?  2
#
"""


def test_models_boxes_and_charges(tmp_path):
    path = tmp_path / "made.cif"
    path.write_text(HEAD + ROWS)
    first, second = read_records(str(path), ":")
    assert str(first.atoms.symbols) == str(second.atoms.symbols) == "OCl"
    assert first.atoms.get_array("atomtypes").tolist() == ["O5'", "CL"]
    np.testing.assert_allclose(first.atoms.cell.cellpar(), [20, 21, 22, 90, 90, 100])
    np.testing.assert_allclose(second.atoms.positions, [[0.5, 1, 2], [3.5, 4, 5]])
    assert (first.charge_text, second.charge_text) == ("charge -2 (sum of formal charges)", "charge 0 (the default)")


def test_alternate_locations_are_left_out_with_a_warning(tmp_path):
    path = tmp_path / "made.cif"
    rows = ROWS.replace('1 O  "O5\'" .', '1 O  "O5\'" A').replace("2 CL CL    . CL  B 1", '2 O  "O5\'" B LIG A 1')
    path.write_text(HEAD + rows.split("HETATM 3")[0])
    with pytest.warns(UserWarning, match="1 others are left out"):
        (atoms,) = read_structures(str(path), ":")
    np.testing.assert_allclose(atoms.positions, [[0, 1, 2]])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            ROWS.replace("2 CL CL", "2 .  CL"),
            r"every atom needs an element, got none for atom 1 \('CL' of residue CL 1\)",
        ),
        (ROWS.replace("\n#", " 7\n#"), "must have 13 values for each atom, got 53 in total"),
    ],
)
def test_damaged_files_are_refused(tmp_path, rows, words):
    path = tmp_path / "made.cif"
    path.write_text(HEAD + rows)
    with pytest.raises(ValueError, match=f"can't read '{path}': .*{words}"):
        read_structures(str(path), ":")
