"""Energies of atoms against Hartree-Fock ones (Clementi and Roetti), and units that follow from ratios."""

import numpy as np
import pytest

from torchmdx.datasets.energy_units import atom_energies, depth, unit_between, unit_of
from torchmdx.datasets.frames import Frames

HARTREE_FOCK = {6: -37.689, 8: -74.809, 14: -288.854, 17: -459.482, 26: -1262.444, 35: -2572.441}


def test_energies_of_atoms():
    found = atom_energies(np.array(list(HARTREE_FOCK))) / 27.211386
    np.testing.assert_allclose(found, list(HARTREE_FOCK.values()), rtol=0.012)


def test_units_of_ratios():
    assert unit_of(1.0) is None
    assert [unit_of(x) for x in (1 / 27.2, 1 / 13.6, 1 / 0.04336, 96.5, 990.0)] == [
        "hartree", "rydberg", "kcal/mol", "kJ/mol", "meV",
    ]  # fmt: skip
    assert unit_between(23.06) == "in kcal/mol and the others in eV"
    assert unit_between(1 / 27.2) == "in hartree and the others in eV"
    assert unit_between(1.0) is None


def test_depth_needs_a_heavy_element():
    water = Frames.single(np.eye(3), np.array([8, 1, 1]), energy=-76.4 * 27.211386)
    hydrogen = Frames.single(np.eye(3)[:2], np.array([1, 1]), energy=-31.0)
    found = depth(Frames.concatenate([water, hydrogen]))
    assert found[0] == pytest.approx(1.0, abs=0.02)
    assert np.isnan(found[1])
