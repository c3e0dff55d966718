"""The packed store: what goes in comes out, whole or not at all."""

import json

import numpy as np
import pytest

from torchmdx.datasets.frames import Frames
from torchmdx.datasets.store import Store, StoreWriter

RNG = np.random.default_rng(3)


def molecule(numbers, **labels) -> Frames:
    return Frames.single(RNG.normal(size=(len(numbers), 3)), np.array(numbers), **labels)


@pytest.fixture
def frames() -> list[Frames]:
    water = [molecule([8, 1, 1], energy=-10.0 - k, forces=RNG.normal(size=(3, 3))) for k in range(4)]
    crystal = Frames.single(
        RNG.normal(size=(2, 3)), np.array([11, 17]), cell=np.diag([5.0, 6, 7]), pbc=[True, True, False], charge=1.0,
        energy=3.0, stress=np.arange(9.0).reshape(3, 3),
    )  # fmt: skip
    return [*water, crystal, molecule([92])]


@pytest.fixture
def store(tmp_path, frames) -> Store:
    with StoreWriter(tmp_path / "set.store", units={"energy": "eV"}) as writer:
        writer.add(Frames.concatenate(frames[:4]), "water.xyz", 10)
        writer.add(Frames.concatenate(frames[4:]), "others.xyz", np.array([7, 3]))
    return Store.open(tmp_path / "set.store")


def test_frames_come_out_in_the_order_asked_for(store, frames):
    taken = store.gather([4, 0, 5, 0])
    expected = Frames.concatenate([frames[i] for i in (4, 0, 5, 0)])
    for name in Frames.__annotations__:
        np.testing.assert_array_equal(getattr(taken, name), getattr(expected, name))
    assert taken.has_forces.tolist() == [False, True, False, True]
    assert taken.has_energy.tolist() == [True, True, False, True]
    assert taken.has_stress.tolist() == [True, False, False, False]
    assert len(store.gather([])) == 0


def test_a_store_knows_what_is_in_it(store):
    assert (len(store), store.num_atoms, store.elements) == (6, 15, (1, 8, 11, 17, 92))
    assert store.labels == {"energy", "forces", "stress"}
    assert store.origin(1) == ("water.xyz", 11)
    assert store.origin(5) == ("others.xyz", 3)
    assert store.units == {"energy": "eV"}


def test_a_frame_as_a_system(store):
    system = store.gather([4]).system(0)
    assert system.pbc.tolist() == [True, True, False]
    assert system.charge == 1.0
    assert system.cell[2, 2] == 7.0


def test_the_digest_is_of_the_content(tmp_path, frames, store):
    def digest(name, last):
        with StoreWriter(tmp_path / name) as writer:
            for frame in [*frames[:-1], last]:
                writer.add(frame, "elsewhere.xyz", 0)
        return Store.open(tmp_path / name).digest

    assert digest("same", frames[-1]) == digest("again", frames[-1])
    assert digest("other", molecule([91])) != digest("same2", frames[-1])


def test_a_number_that_no_frame_has(store):
    with pytest.raises(IndexError, match="numbered 0 to 5, got 6"):
        store.gather([0, 6])


def test_an_error_while_writing_leaves_nothing(tmp_path, frames):
    def broken():
        with StoreWriter(tmp_path / "half") as writer:
            writer.add(frames[0], "a.xyz", 0)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        broken()
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_kept(tmp_path, store, frames):
    with pytest.raises(FileExistsError, match="already"):
        StoreWriter(store.path)
    (tmp_path / "notes").mkdir()
    with pytest.raises(FileExistsError, match="not a store"):
        StoreWriter(tmp_path / "notes", overwrite=True)
    with StoreWriter(store.path, overwrite=True) as writer:
        writer.add(frames[0], "a.xyz", 0)
        assert len(Store.open(store.path)) == 6  # until the new one is whole
    assert len(Store.open(store.path)) == 1


def test_no_frame_at_all(tmp_path):
    with pytest.raises(ValueError, match="at least one frame"), StoreWriter(tmp_path / "empty"):
        pass


def test_broken_stores_say_what_is_wrong(store, tmp_path):
    with pytest.raises(FileNotFoundError, match="no store of frames"):
        Store.open(tmp_path)
    energies = store.path / "energy.bin"
    energies.write_bytes(energies.read_bytes()[:-1])
    with pytest.raises(ValueError, match="energy.bin .* must have 48 bytes, got 47"):
        Store.open(store.path)
    description = json.loads((store.path / "store.json").read_text())
    (store.path / "store.json").write_text(json.dumps(description | {"version": 9}))
    with pytest.raises(ValueError, match="versions 1 and 2, .* has version 9"):
        Store.open(store.path)
    (store.path / "store.json").write_text("{")
    with pytest.raises(ValueError, match="not readable"):
        Store.open(store.path)
