"""Frames of hydrogens of carbon on their way elsewhere, in recipes/organic_1: which move, where to, and how far."""

import sys

import numpy as np
import pytest
from ase.build import molecule
from ase.io import read


@pytest.fixture
def hydrogens(recipe):
    return recipe("make_hydrogens")


ATOMS = molecule("CH3OH")  # C, O, then hydrogens, of which one is the oxygen's


def test_hydrogens_of_carbon_are_those_of_the_methyl_group(hydrogens):
    found = hydrogens.hydrogens_of_carbon(ATOMS.numbers, ATOMS.positions)
    lengths = ATOMS.get_all_distances()[found[:, 0], found[:, 1]]
    assert len(found) == 3
    assert (found[:, 0] == 0).all()
    assert lengths.max() < 1.12


def test_only_the_hydrogen_moves(hydrogens):
    rng, bond = np.random.default_rng(0), hydrogens.hydrogens_of_carbon(ATOMS.numbers, ATOMS.positions)[0]
    rest = np.arange(len(ATOMS)) != bond[1]
    drawn = [hydrogens.moved(ATOMS.numbers, ATOMS.positions, bond, rng) for _ in range(300)]
    found = np.array([places for places in drawn if places is not None])
    assert len(found) > 200
    assert (found[:, rest] == ATOMS.positions[rest]).all()
    assert np.linalg.norm(found[:, bond[1]] - ATOMS.positions[bond[1]], axis=-1).min() > 0.0


def test_a_way_ends_at_a_bond_with_the_other_atom(hydrogens, monkeypatch):
    """Methane before an oxygen, 2.6 Å from the nearest hydrogen: the only way that is not to a hydrogen beside it."""
    monkeypatch.setattr(hydrogens, "HYDROGEN", 0.0)
    numbers = np.array([6, 1, 1, 1, 1, 8])
    tetrahedron = 1.09 / 3**0.5 * np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    positions = np.array([[0, 0, 0], *tetrahedron, (1.09 + 2.6) / 3**0.5 * np.ones(3)])
    rng = np.random.default_rng(1)
    ways = np.array([hydrogens.towards(numbers, positions, np.array([0, 1]), rng) for _ in range(300)])
    left = np.linalg.norm(ways - positions[5], axis=-1)
    end = hydrogens.AT_THE_END * (0.31 + 0.66)
    assert np.linalg.norm(np.cross(ways, np.ones(3)), axis=-1).max() < 1e-9  # straight
    assert end - 1e-9 <= left.min() < end + 0.1
    assert 2.6 - 0.2 * (2.6 - end) < left.max() <= 2.6 - 0.1 * (2.6 - end) + 1e-9  # from a tenth of it on
    monkeypatch.setattr(hydrogens, "REACH", 1.5)  # nothing is so near
    assert hydrogens.towards(numbers, positions, np.array([0, 1]), rng) is None


def test_atoms_do_not_end_in_one_another(hydrogens):
    rng = np.random.default_rng(2)
    bonds = hydrogens.hydrogens_of_carbon(ATOMS.numbers, ATOMS.positions)
    radii = {1: 0.31, 6: 0.76, 8: 0.66}
    least = np.array([[radii[int(a)] + radii[int(b)] for a in ATOMS.numbers] for b in ATOMS.numbers]) * hydrogens.LEAST
    np.fill_diagonal(least, -1)
    for _ in range(200):
        places = hydrogens.moved(ATOMS.numbers, ATOMS.positions, bonds[rng.integers(3)], rng)
        if places is not None:
            assert (np.linalg.norm(places[:, None] - places, axis=-1) > least).all()


def test_files_hold_as_many_as_wanted_of_the_frames_that_train(hydrogens, tmp_path, monkeypatch, capsys):
    water = molecule("H2O")
    carbon = hydrogens.Frame(ATOMS.numbers, ATOMS.positions, 0, "CO")
    without = hydrogens.Frame(water.numbers, water.positions, 0, "O")
    for name in ("train-a", "train-md300-00", "train-protons-00", "test-a"):  # of which the first counts
        hydrogens.write_frames(tmp_path / f"{name}.xyz", [carbon] * 30 + [without] * 5)
    monkeypatch.setattr(sys, "argv", ["make_hydrogens.py", "--geometries", str(tmp_path), "--count", "6"])
    hydrogens.main()
    assert capsys.readouterr().out == "30 frames have carbon; 6 hydrogens were moved\n"
    frames = [atoms for path in sorted(tmp_path.glob("train-hydrogens-*.xyz")) for atoms in read(path, ":")]
    assert [str(atoms.symbols) for atoms in frames] == [str(ATOMS.symbols)] * 6
    assert all(atoms.info["molecule"] == "CO" for atoms in frames)
