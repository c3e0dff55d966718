"""Stores as sources of another store."""

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

from torchmdx.datasets.conversion import convert
from torchmdx.datasets.frames import Frames
from torchmdx.datasets.store import Store, StoreWriter

NUMBERS, WATER = np.array([8, 1, 1]), np.array([[0.0, 0, 0], [0.76, 0.59, 0], [-0.76, 0.59, 0]])


def frame(energy, **labels):
    return Frames.single(WATER, NUMBERS, energy=energy, **labels)


@pytest.fixture
def two(tmp_path):
    """A store of three frames with different labels, and a file in kcal/mol."""
    with StoreWriter(tmp_path / "a") as writer:
        writer.add(frame(-1.0, forces=np.ones((3, 3))), "x", 0)
        writer.add(frame(-2.0, weight=3.0, config_type="hot"), "x", 1)
        writer.add(frame(np.nan, forces=np.full((3, 3), 2.0)), "x", 2)
    atoms = Atoms(NUMBERS, WATER)
    atoms.calc = SinglePointCalculator(atoms, energy=-69.18)
    ase.io.write(tmp_path / "b.xyz", atoms)
    return tmp_path / "a", tmp_path / "b.xyz"


def test_a_store_and_a_file_in_other_units_become_one(two, tmp_path):
    convert(two, tmp_path / "out", energy_unit="kcal/mol", log=[].append)
    store = Store.open(tmp_path / "out")
    frames = store.gather(np.arange(4))
    np.testing.assert_allclose(frames.energy, [-1, -2, np.nan, -3.0], rtol=1e-4)
    assert frames.forces[[0, 6], 0].tolist() == [1.0, 2.0]
    assert np.isnan(frames.forces[3:6]).all()
    assert frames.weight.tolist() == [1, 3, 1, 1]
    assert frames.config_type.tolist() == ["", "hot", "", ""]
    assert [store.origin(k) for k in (1, 3)] == [(str(two[0]), 1), (str(two[1]), 0)]


def test_units_without_a_file_to_apply_to_are_refused(two, tmp_path):
    with pytest.raises(ValueError, match="apply to files, but all data are stores"):
        convert([two[0]], tmp_path / "out", energy_unit="kcal/mol", log=[].append)
