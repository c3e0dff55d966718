import pytest
from ase.build import bulk

from torchmdx.commands import cli
from torchmdx.structures.files import own_frames, read_record

HEAD = """data_x
_cell_length_a 3.8
_cell_length_b 3.8
_cell_length_c 3.8
_cell_angle_alpha 90
_cell_angle_beta 90
_cell_angle_gamma 90
_symmetry_space_group_name_H-M 'P 1'
loop_
_atom_site_label
_atom_site_type_symbol
_atom_site_fract_x
_atom_site_fract_y
_atom_site_fract_z
_atom_site_occupancy
"""
MIXED = "Cu1 Cu 0 0 0 0.5\nAu1 Au 0 0 0 0.5\nCu2 Cu 0.5 0.5 0 1\n"
PARTIAL = "Cu1 Cu 0 0 0 0.5\nCu2 Cu 0.5 0.5 0 1\n"


@pytest.mark.parametrize("form", [None, "cif"])
@pytest.mark.parametrize(("sites", "said"), [(MIXED, "0.5 Cu and 0.5 Au at site 0"), (PARTIAL, "0.5 Cu at site 0")])
def test_a_disordered_crystal_is_refused_by_name(tmp_path, sites, said, form):
    path = tmp_path / "a.cif"
    path.write_text(HEAD + sites)
    with pytest.raises(ValueError, match="a.cif.*every site must hold one atom, got") as raised:
        read_record(str(path), "-1", format=form)
    assert said in str(raised.value)
    assert "make an ordered one first" in str(raised.value)


def test_an_ordered_crystal_with_occupancies_is_read(tmp_path, capsys):
    path = tmp_path / "a.cif"
    path.write_text(HEAD + "Cu1 Cu 0 0 0 1.0\nCu2 Cu 0.5 0.5 0 1\n")
    assert read_record(str(path), "-1").atoms.get_chemical_formula() == "Cu2"
    bulk("Cu").write(tmp_path / "b.cif")
    assert len(own_frames(tmp_path / "b.cif")) == 1
    (tmp_path / "c.cif").write_text(HEAD + PARTIAL)
    assert cli.main(["energy", str(tmp_path / "c.cif"), "--device", "cpu"]) == 2
    assert "0.5 Cu at site 0" in capsys.readouterr().err
