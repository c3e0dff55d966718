"""Units that files state, in the spellings that programs write."""

import pytest

from torchmdx.datasets.stated_units import contradiction, stated_units
from torchmdx.datasets.units import Units


def test_dictionaries_and_their_text_are_read():
    for value in ({"energy": "eV", "forces": "eV/Ang"}, '{"energy": "eV", "forces": "eV/Ang"}'):
        assert stated_units({"_property_unit_dict": value}) == {"energy": "eV", "force": "eV/Ang"}
    assert stated_units({"_property_unit_dict": "no JSON"}) == {}
    assert stated_units({"_property_unit_dict": {"energy": 3}}) == {}
    assert stated_units({}) == {}


@pytest.mark.parametrize("unit", ["eV/A", "eV/Å", "ev/Angstrom", "eV/angstroms"])
def test_spellings_of_the_usual_unit(unit):
    assert contradiction({"energy": "EV", "force": unit}, Units()) is None


def test_other_units_are_told():
    assert "energy in Ry" in contradiction({"energy": "Ry"}, Units())
    assert "force in kcal/mol/Angstrom" in contradiction({"force": "kcal/mol/Angstrom"}, Units())
    assert contradiction({"force": "Hartree/Bohr"}, Units("hartree", "bohr")) is None
