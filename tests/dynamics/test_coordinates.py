"""Distances, angles and torsions against ASE, and their gradients against finite differences."""

import ase
import numpy as np
import pytest

from torchmdx.dynamics import coordinates

CASES = [
    (2, coordinates.distances, coordinates.distance_gradients, lambda a: a.get_distance(0, 1)),
    (3, coordinates.angles, coordinates.angle_gradients, lambda a: np.radians(a.get_angle(0, 1, 2))),
    (4, coordinates.torsions, coordinates.torsion_gradients, lambda a: np.radians(a.get_dihedral(0, 1, 2, 3))),
]


@pytest.mark.parametrize(("size", "measure", "gradients", "expected"), CASES)
def test_values_are_those_of_ase(size, measure, gradients, expected):
    places = np.random.default_rng(1).normal(size=(40, size, 3))
    difference = measure(places) - [expected(ase.Atoms(f"C{size}", one)) for one in places]
    np.testing.assert_allclose(np.exp(1j * difference) if size == 4 else 1 + difference, 1, atol=1e-12)


@pytest.mark.parametrize(("size", "measure", "gradients", "expected"), CASES)
def test_gradients_are_those_of_finite_differences(size, measure, gradients, expected):
    places = np.random.default_rng(2).normal(size=(10, size, 3))
    found, step = gradients(places), 1e-6
    for atom in range(size):
        for k in range(3):
            moved = np.zeros((size, 3))
            moved[atom, k] = step
            difference = measure(places + moved) - measure(places - moved)
            difference = (difference + np.pi) % (2 * np.pi) - np.pi  # a torsion may jump at ±180 degrees
            np.testing.assert_allclose(found[:, atom, k], difference / (2 * step), rtol=1e-6, atol=1e-8)


def test_straight_lines_have_no_gradient():
    line = np.array([[0.0, 0, 0], [1, 0, 0], [2, 0, 0], [3, 1, 0]])
    with np.errstate(all="ignore"):
        assert not np.isfinite(coordinates.angle_gradients(line[None, :3])).all()
        assert not np.isfinite(coordinates.torsion_gradients(line[None])).all()
    assert coordinates.angles(line[:3]) == pytest.approx(np.pi)
