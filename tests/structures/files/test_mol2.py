import warnings

import pytest

from torchmdx.structures.files import read_record, read_records

METHANOL = """@<TRIPOS>MOLECULE
methanol
 6 5 1 0 0
SMALL
USER_CHARGES

@<TRIPOS>ATOM
      1 C1         -0.3800    0.0000    0.0200 C.3       1 LIG1     0.1167
      2 O1          1.0100    0.0000   -0.0500 O.3       1 LIG1    -0.6497
      3 H1         -0.7300   -0.0100    1.0500 H         1 LIG1     0.0287
      4 H2         -0.7600    0.9000   -0.4700 H         1 LIG1     0.0287
      5 H3         -0.7700   -0.8900   -0.4800 H         1 LIG1     0.0287
      6 HO         1.3300    0.0000    0.8600 H         1 LIG1     0.4469
@<TRIPOS>BOND
     1     1     2 1
"""
CHLORIDE = """# a comment
@<TRIPOS>MOLECULE
ion
1 0
SMALL
GASTEIGER
@<TRIPOS>ATOM
1 CL 1.0 2.0 3.0 Cl 1 CL -1.0
@<TRIPOS>CRYSIN
10.0 11.0 12.0 90.0 90.0 90.0 1 1
"""


def test_every_molecule_with_its_charge_and_cell(tmp_path):
    path = tmp_path / "two.mol2"
    path.write_text(METHANOL + CHLORIDE)
    first, second = read_records(str(path), ":")
    assert first.atoms.get_chemical_formula() == "CH4O"
    assert first.atoms.positions[5].tolist() == [1.33, 0.0, 0.86]
    assert first.charge == 0
    assert not first.atoms.pbc.any()
    assert not first.atoms.has("initial_charges")  # a force field's are no input of a potential
    assert (second.charge, second.charge_from) == (-1, "'charge' in the file")
    assert second.atoms.cell.lengths().tolist() == [10, 11, 12]
    assert second.atoms.pbc.all()
    assert second.atoms.symbols[0] == "Cl"


def test_charges_that_add_up_to_no_integer_are_ignored_with_a_warning(tmp_path):
    path = tmp_path / "a.mol2"
    path.write_text(METHANOL.replace("0.4469", "0.9000"))
    with pytest.warns(UserWarning, match="must add up to an integer, got 0.4531 e"):
        assert read_record(str(path), "0").charge_from == "the default"
    rows = "\n".join(f"{k} H {3 * k} 0 0 H 1 X 0.0003" for k in range(1000))
    path.write_text(f"@<TRIPOS>MOLECULE\nmany\n1000\nSMALL\nUSER_CHARGES\n@<TRIPOS>ATOM\n{rows}\n")
    with pytest.warns(UserWarning, match="must add up to an integer, got 0.3 e"):
        read_record(str(path), "0")
    path.write_text(METHANOL.replace("0.4469", "0.9000").replace("USER_CHARGES", "NO_CHARGES"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_record(str(path), "0").charge == 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("O.3", "Du", "molecule 1: every atom needs an element, got the type 'Du' for atom 2 ('O1')"),
        ("O.3 ", "os  ", "got the type 'os' for atom 2 ('O1'); types must be those of Sybyl"),  # GAFF: no osmium
        (" 6 5 1", " 7 5 1", "molecule 1: it must have 7 atoms, got 6"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, old, new, said):
    path = tmp_path / "a.mol2"
    path.write_text(METHANOL.replace(old, new))
    with pytest.raises(ValueError, match="a.mol2") as raised:
        read_record(str(path), "0")
    assert said in str(raised.value)
