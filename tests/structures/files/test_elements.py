"""Elements from names of atoms and residues."""

import pytest

from torchmdx.structures.files.elements import element_of, symbol_of


@pytest.mark.parametrize(
    ("name", "residue", "symbol"),
    [
        ("CA", "ALA", "C"),
        ("CA", "CA", "Ca"),
        ("NA", "NA+", "Na"),
        ("NA", "HEM", "N"),
        ("SOD", "SOD", "Na"),
        ("CL1", "LIG", "Cl"),
        ("HG21", "THR", "H"),
        ("1HB", "ALA", "H"),
        ("OW", "SOL", "O"),
        ("HW1", "SOL", "H"),
        ("MW", "SOL", None),
        ("", "SOL", None),
    ],
)
def test_elements_of_names(name, residue, symbol):
    assert element_of(name, residue) == symbol


def test_symbols_in_any_case():
    assert [symbol_of(text) for text in ("CL", "c", "D", "X", "", "Qq")] == ["Cl", "C", "H", None, None, None]
