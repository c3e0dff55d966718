import numpy as np
import pytest
from water_files import KCAL, NUMBERS, WATER, opened, same


@pytest.mark.parametrize("compressed", [False, True])
def test_npz_of_rmd17(tmp_path, water, compressed):
    positions, energy, forces = water
    (np.savez_compressed if compressed else np.savez)(
        tmp_path / "w.npz",
        nuclear_charges=NUMBERS.astype(np.uint8),
        coords=np.asfortranarray(positions),
        energies=energy / KCAL,
        forces=forces / KCAL,
        old_indices=np.arange(5),
    )
    same(opened(tmp_path, tmp_path / "w.npz", energy_unit="kcal/mol"), water)


def test_npz_of_many_blocks_keeps_the_order(tmp_path, water, monkeypatch):
    monkeypatch.setattr("torchmdx.datasets.blocks.BLOCK_NUMBERS", 18)  # two waters
    positions, energy, forces = water
    np.savez(tmp_path / "w.npz", z=NUMBERS, R=positions, E=energy[:, None], F=forces)
    same(opened(tmp_path, tmp_path / "w.npz"), water)


def test_npz_padded_with_charges_and_other_names(tmp_path):
    positions = np.zeros((2, 3, 3))
    positions[0], positions[1, :2] = WATER, [[0, 0, 0], [0, 0, 0.97]]
    forces = np.arange(18.0).reshape(2, 3, 3)
    np.savez(tmp_path / "p.npz", xyz=positions, Z=[[8, 1, 1], [8, 1, 0]], Q=[0, -1], E=[1.0, 2.0], F=forces)
    frames = opened(tmp_path, tmp_path / "p.npz", keys={"positions": "xyz"}).gather([1, 0])
    assert frames.counts.tolist() == [2, 3]
    assert frames.atomic_numbers.tolist() == [8, 1, 8, 1, 1]
    assert frames.charge.tolist() == [-1.0, 0.0]
    assert frames.forces[:, 0].tolist() == [9, 12, 0, 3, 6]


def test_npz_with_edges_of_boxes_and_one_charge(tmp_path):
    edges = np.array([[9.0, 10, 11], [12, 13, 14]])
    np.savez(tmp_path / "b.npz", z=NUMBERS, R=np.tile(WATER, (2, 1, 1)), E=[1.0, 2.0], box=edges, charge=-1)
    frames = opened(tmp_path, tmp_path / "b.npz").gather([0, 1])
    np.testing.assert_array_equal(frames.cell, [np.diag(edges[0]), np.diag(edges[1])])
    assert frames.pbc.all()
    assert frames.charge.tolist() == [-1.0, -1.0]


def test_npz_with_python_objects_is_not_loaded(tmp_path):
    np.savez(tmp_path / "o.npz", z=NUMBERS, R=np.array([WATER, None], dtype=object), E=[1.0, 2.0])
    with pytest.raises(ValueError, match="'R' of .*o.npz' must be numbers; Python objects.*are not loaded"):
        opened(tmp_path, tmp_path / "o.npz")


def test_npz_without_labels_says_what_there_is(tmp_path):
    np.savez(tmp_path / "n.npz", z=NUMBERS, R=WATER[None], U=[1.0])
    with pytest.raises(ValueError, match=r"must have energy or forces \(energies, E,.*got z, R, U"):
        opened(tmp_path, tmp_path / "n.npz")
