import argparse

import pytest

from torchmdx.structures.pressure_units import bar_of, pressure_of


@pytest.mark.parametrize(
    ("text", "gpa"),
    [("1", 1), ("2.5GPa", 2.5), ("500 bar", 0.05), ("-1e3bar", -0.1), ("1kbar", 0.1), ("10 MPa", 0.01), ("0", 0)],
)
def test_units(text, gpa):
    assert pressure_of(text) == pytest.approx(gpa)
    if text[-1].isalpha():
        assert bar_of(text) == pytest.approx(1e4 * gpa)


def test_without_a_unit_each_command_has_its_own():
    assert (pressure_of("2"), bar_of("2")) == (2, pytest.approx(2))


@pytest.mark.parametrize("text", ["1 psi", "bar", "", "1..2", "GPa 1"])
def test_others_are_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="must be a number with GPa, MPa, kbar, bar or atm, got"):
        pressure_of(text)
