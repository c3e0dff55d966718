"""Frames that are nearly the same as training frames, whichever way they are turned."""

import numpy as np
from ase.build import bulk

from torchmdx.datasets.frames import Frames
from torchmdx.datasets.near_copies import near_copies
from torchmdx.datasets.store import Store, StoreWriter


def turned(positions, generator):
    rotation, _ = np.linalg.qr(generator.normal(size=(3, 3)))
    return positions @ rotation + generator.normal(size=3)


def made(path, frames):
    with StoreWriter(path) as writer:
        writer.add(Frames.concatenate(frames), "x", 0)
    return Store.open(path)


def test_neighbours_in_a_trajectory_are_near_and_others_are_not(tmp_path):
    generator = np.random.default_rng(2)
    numbers, first = np.array([6, 6, 8, 1, 1, 1, 1]), generator.normal(0, 2, (7, 3))
    apart = [first + generator.normal(0, 0.1, (7, 3)) for _ in range(40)]
    near = [turned(apart[k] + generator.normal(0, 0.005, (7, 3)), generator) for k in (4, 30)]
    far = [first + generator.normal(0, 0.1, (7, 3)) for _ in range(20)]
    store = made(tmp_path / "s", [Frames.single(x, numbers) for x in (*apart, *near, *far)])
    found, compared = near_copies(store, np.arange(40), np.arange(40, 62))
    assert (found.tolist(), compared) == ([40, 41], 22)
    other = made(tmp_path / "t", [Frames.single(apart[0], numbers), Frames.single(apart[0], numbers[::-1].copy())])
    assert near_copies(other, np.array([0]), np.array([1]))[0].tolist() == []


def test_atoms_that_crossed_the_cell_are_where_they_were(tmp_path):
    atoms = bulk("NaCl", "rocksalt", a=5.6, cubic=True)
    places = dict(cell=atoms.cell.array, pbc=[True] * 3)
    moved = atoms.positions + 1.3 + np.where(np.arange(8)[:, None] % 2, atoms.cell.array[0], 0.0)
    store = made(
        tmp_path / "s",
        [
            Frames.single(x, atoms.numbers, **places)
            for x in (atoms.positions, moved, atoms.positions + np.random.default_rng(0).normal(0, 0.1, (8, 3)))
        ],
    )
    assert near_copies(store, np.array([0]), np.array([1, 2]))[0].tolist() == [1]
