"""Files of explored frames."""

import numpy as np
import pytest

from torchmdx.datasets.labelling.geometry import UnlabelledStructure
from torchmdx.learning.explored import RUNS, Explored, FoundFrame
from torchmdx.learning.replicas import Replica

BATCH = [Replica(0, 300.0, "explore", 1), Replica(1, 600.0, "explore", 2)]


def frame(replica, atoms, step):
    rng = np.random.default_rng(step)
    return FoundFrame(replica, step, 0.1 * step, rng.normal(size=(atoms, 3)), np.diag([step, 1.0, 1.0]))


def test_frames_of_different_sizes_come_back_from_a_file(tmp_path):
    found = Explored(
        BATCH, [frame(0, 3, 10), frame(1, 5, 10), frame(0, 3, 20)], ["whole", "threshold"], [20, 10], [0, 2]
    )
    found.save(tmp_path / "batch.npz", more=np.arange(3))
    again, more = Explored.load(tmp_path / "batch.npz", BATCH)
    assert (again.endings, again.lasted, again.branched) == (found.endings, found.lasted, found.branched)
    assert list(more) == ["more"]
    assert more["more"].tolist() == [0, 1, 2]
    for one, other in zip(again.frames, found.frames, strict=True):
        assert (one.replica, one.step, one.uncertainty) == (other.replica, other.step, other.uncertainty)
        np.testing.assert_array_equal(one.positions, other.positions)
        np.testing.assert_array_equal(one.cell, other.cell)


def test_a_file_without_frames(tmp_path):
    Explored(BATCH).save(tmp_path / "batch.npz")
    again, _ = Explored.load(tmp_path / "batch.npz", BATCH)
    assert again.frames == []
    assert again.endings == [RUNS, RUNS]


def test_damaged_files_are_named(tmp_path):
    (tmp_path / "batch.npz").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(ValueError, match=r"batch\.npz"):
        Explored.load(tmp_path / "batch.npz", BATCH)


def test_structures_have_the_cell_of_the_frame_if_they_are_periodic():
    starts = [
        UnlabelledStructure(np.array([1, 1, 8]), np.zeros((3, 3)), np.zeros((3, 3)), np.zeros(3, bool), 1.0, 2),
        UnlabelledStructure(np.full(5, 29), np.zeros((5, 3)), np.eye(3), np.ones(3, bool)),
    ]
    found = Explored(BATCH, [frame(0, 3, 10), frame(1, 5, 10)])
    molecule, crystal = (found.structure(one, starts) for one in found.frames)
    assert molecule.charge == 1.0
    assert molecule.multiplicity == 2
    assert not molecule.cell.any()
    np.testing.assert_array_equal(crystal.cell, np.diag([10, 1, 1]))
