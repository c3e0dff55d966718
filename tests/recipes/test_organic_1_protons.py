"""Frames of shared protons in recipes/organic_1: which hydrogen bonds there are, and where a proton goes."""

import sys

import numpy as np
import pytest
from ase.io import read


@pytest.fixture
def protons(recipe):
    return recipe("make_protons")


def pair(apart: float) -> tuple[np.ndarray, np.ndarray]:
    """Two waters, the first's second hydrogen pointing at the other's oxygen."""
    first = np.array([[0.0, 0, 0], [-0.24, 0.93, 0], [0.96, 0, 0]])
    second = np.array([[apart, 0, 0], [apart + 0.6, 0, 0.76], [apart + 0.6, 0, -0.76]])
    return np.array([8, 1, 1, 8, 1, 1]), np.concatenate([first, second])


@pytest.mark.parametrize(("apart", "count"), [(2.7, 1), (3.2, 1), (3.4, 0), (2.1, 0)])
def test_hydrogen_bonds_of_two_waters(protons, apart, count):
    found = protons.hydrogen_bonds(*pair(apart))
    assert found.tolist() == [[0, 2, 3]][:count]


def test_a_hydrogen_that_points_away_has_no_bond(protons):
    numbers, positions = pair(2.7)
    positions[2] = [0.24, 0.0, 0.93]
    assert len(protons.hydrogen_bonds(numbers, positions)) == 0


def test_only_the_proton_moves_and_no_nearer_than_a_bond(protons):
    numbers, positions = pair(2.7)
    rng = np.random.default_rng(0)
    found = np.array([protons.moved(numbers, positions, np.array([0, 2, 3]), rng) for _ in range(400)])
    rest = np.array([0, 1, 3, 4, 5])
    assert (found[:, rest] == positions[rest]).all()
    along, aside = found[:, 2, 0], np.abs(found[:, 2, 1:])
    assert aside.max() < 6 * protons.NOISE
    assert 0.96 < np.median(along) < 2.7 - 0.97
    assert along.min() > 0.96 - 5 * protons.NOISE
    assert along.max() < 2.7 - 0.97 + 5 * protons.NOISE
    assert np.ptp(along) > 0.6  # all the way


def test_files_hold_neutral_and_charged_frames_and_bare_ions(protons, tmp_path, monkeypatch, capsys):
    numbers, positions = pair(2.7)
    frame = protons.Frame
    given = [frame(numbers, positions, charge, "pair") for charge in [0] * 4 + [1] * 4]
    given.append(frame(np.array([17]), np.zeros((1, 3)), -1, "[Cl-]"))
    for name in ("train-a", "train-md300-00", "test-a"):  # of which the first counts
        protons.write_frames(tmp_path / f"{name}.xyz", given)
    monkeypatch.setattr(sys, "argv", ["make_protons.py", "--geometries", str(tmp_path), "--count", "4"])
    protons.main()
    assert capsys.readouterr().out == "4 neutral and 4 charged frames have hydrogen bonds; 4 are taken\n"
    frames = [atoms for path in sorted(tmp_path.glob("train-protons-*.xyz")) for atoms in read(path, ":")]
    kinds = sorted((str(atoms.symbols), atoms.info["charge"]) for atoms in frames)
    assert kinds == [("Cl", -1)] * protons.BARE + [("OH2OH2", 0)] * 2 + [("OH2OH2", 1)] * 2
