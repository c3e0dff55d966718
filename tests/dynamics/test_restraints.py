"""Restraints as given: values, energies, tables of files, and arguments out of range."""

import re

import numpy as np
import pytest
from oscillators import springs

from torchmdx.dynamics.integrators import VelocityVerlet
from torchmdx.dynamics.restraints import Angle, Distance, Position, Torsion, restraint_of


def test_values_have_the_unit_of_the_reference_and_nan_for_missing_atoms():
    snapshot = springs(VelocityVerlet(), 1.0, [4, 3]).snapshot()
    square = [[0, 0, 0], [2, 0, 0], [2, 2, 0], [2, 2, 2]]
    snapshot.positions[:] = [*square, *square[:3]]
    np.testing.assert_allclose(Distance((0, 1), 1.0, 1.0).values(snapshot), [2, 2])
    np.testing.assert_allclose(Angle((0, 1, 2), 90.0, 1.0).values(snapshot), [90, 90])
    np.testing.assert_allclose(Torsion((0, 1, 2, 3), 0.0, 1.0).values(snapshot), [90, np.nan])


def test_energies_of_a_value_in_all_windows():
    """A torsion is periodic: 170 and -170 degrees are 20 degrees apart."""
    windows = Torsion((0, 1, 2, 3), [-170.0, 0.0], [2.0, 4.0])
    found = windows.energy(np.array([170.0, 10.0])[:, None])
    np.testing.assert_allclose(found, [[np.radians(20) ** 2, 2 * np.radians(170) ** 2],
                                       [np.radians(180) ** 2, 2 * np.radians(10) ** 2]])  # fmt: skip
    np.testing.assert_allclose(Distance((0, 1), 1.0, [1.0, 3.0]).energy(1.5), [0.125, 0.375])


def test_tables_of_files():
    table = {"kind": "torsion", "atoms": [0, 1, 2, 3], "reference": [10, 20], "stiffness": 2.0}
    assert restraint_of(table, "here") == Torsion((0, 1, 2, 3), [10, 20], 2.0)
    assert restraint_of({"kind": "position", "atoms": [1], "stiffness": 2}, "here") == Position((1,), 2)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"kind": "bond"}, "here must have a kind, one of distance, angle, torsion, position, got 'bond'"),
        ([1], "here must have a kind, one of distance, angle, torsion, position, got [1]"),
        ({"kind": "angle", "atoms": [0, 1, 2]}, "got none for reference, stiffness"),
        ({"kind": "position", "atoms": [0], "stiffness": 1, "k": 1}, "here may have kind, atoms, reference and"),
        ({"kind": "angle", "atoms": [0, 1], "reference": 1, "stiffness": 1}, "here: Angle needs 3 atoms, got 2"),
        ({"kind": "position", "atoms": [0], "stiffness": "x"}, "here: could not convert string to float"),
    ],
)
def test_tables_that_are_no_restraint(table, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        restraint_of(table, "here")


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Distance((0, 1, 2), 1.0, 1.0), ValueError, "Distance needs 2 atoms, got 3"),
        (lambda: Distance((0, 0), 1.0, 1.0), ValueError, "atoms of Distance must differ, got [0, 0]"),
        (lambda: Distance((0, -1), 1.0, 1.0), IndexError, "atoms of Distance must be >= 0, got -1"),
        (lambda: Distance((0, 1.5), 1.0, 1.0), ValueError, "atoms of Distance must be a list of indices"),
        (lambda: Distance((0, 1), -1.0, 1.0), ValueError, "the reference of a distance must be >= 0 Å, got -1.0"),
        (lambda: Angle((0, 1, 2), 200, 1.0), ValueError, "must be from 0 to 180 degrees, got 200"),
        (lambda: Torsion((0, 1, 2, 3), np.nan, 1.0), ValueError, "reference must be finite, got nan"),
        (lambda: Torsion((0, 1, 2, 3), 0.0, [1, -2]), ValueError, "stiffness must be >= 0 and finite, got -2.0"),
        (lambda: Position((0, 1), 1.0, [[0, 0, 0]]), ValueError, "the reference of 2 positions must have shape [2, 3]"),
        (lambda: Position((0,), 1.0, [[0, 0, np.inf]]), ValueError, "reference must be finite"),
        (lambda: Position((), 1.0), ValueError, "atoms of Position must be a list of indices, got ()"),
    ],
)
def test_arguments_out_of_range(make, error, words):
    with pytest.raises(error, match=re.escape(words)):
        make()
