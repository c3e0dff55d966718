"""Which unit of force was mistaken for which, from the factor between two sets of forces."""

import math

import pytest

from torchmdx.datasets.force_units import mistaken_unit


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1 / 51.42207, "in hartree/bohr but read as eV/Å"),
        (51.42207, "in eV/Å but read as hartree/bohr"),
        (23.06055, "in kcal/mol/Å but read as eV/Å"),
        (964.853, "in kJ/mol/nm but read as eV/Å"),
        (1.05 * 1000, "in meV/Å but read as eV/Å"),
        (3.7, None),
        (1.0, None),
        (-23.06, None),
        (0.0, None),
        (math.inf, None),
        (math.nan, None),
    ],
)
def test_units(ratio, text):
    assert mistaken_unit(ratio) == text
