import math

import pytest

from torchmdx.structures import units

# CODATA 2022, typed from https://physics.nist.gov/cuu/Constants, in eV, Å, fs and amu.
HARTREE_IN_EV = 27.211386245981
BOHR_IN_ANGSTROM = 0.529177210544


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HARTREE", HARTREE_IN_EV),
        ("BOHR", BOHR_IN_ANGSTROM),
        ("RYDBERG", 13.605693122990),
        ("BOLTZMANN", 8.617333262e-5),
        ("KJ_PER_MOL", 1 / 96.48533212),
        ("KCAL_PER_MOL", 1 / 23.06054783),
        ("GPA", 1 / 160.2176634),
        ("BAR", 1 / 1602176.634),
        ("COULOMB", 14.39964548),
        ("FORCE_TO_ACCELERATION", 9.6485332022e-3),
        ("NANOMETER", 10.0),
        ("PICOSECOND", 1000.0),
    ],
)
def test_constants_are_codata(name, value):
    assert math.isclose(getattr(units, name), value, rel_tol=1e-9)


def test_constants_agree_with_ase_to_its_older_codata():
    from ase import units as ase

    assert math.isclose(units.KCAL_PER_MOL, ase.kcal / ase.mol, rel_tol=1e-7)
    assert math.isclose(units.GPA, ase.GPa, rel_tol=1e-7)
    # One eV/Å on one amu: ASE's time unit is sqrt(amu Å²/eV).
    assert math.isclose(units.FORCE_TO_ACCELERATION, ase.fs**2, rel_tol=1e-7)


def test_a_named_unit_converts_to_ours():
    assert units.conversion("hartree", units.ENERGY_UNITS, "energy") == units.HARTREE
    assert units.conversion("nm", units.LENGTH_UNITS, "length") == 10.0


def test_an_unknown_unit_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="energy unit must be one of eV, meV, .*, got 'Hartrees'"):
        units.conversion("Hartrees", units.ENERGY_UNITS, "energy")
