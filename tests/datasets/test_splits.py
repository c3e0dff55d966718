import json

import numpy as np
import pytest

from torchmdx.datasets.frames import Frames
from torchmdx.datasets.splits import read_split, split, write_split
from torchmdx.datasets.store import Store, StoreWriter

RNG = np.random.default_rng(3)


def molecule(numbers, **labels) -> Frames:
    return Frames.single(RNG.normal(size=(len(numbers), 3)), np.array(numbers), **labels)


@pytest.fixture
def many(tmp_path) -> Store:
    with StoreWriter(tmp_path / "many") as writer:
        for k in range(100):
            writer.add(molecule([1] * (1 + k // 10), energy=1.0), f"file{k % 5}", k)
    return Store.open(tmp_path / "many")


def test_parts_are_disjoint_and_repeat(many):
    parts = split(many, train=50, validation=0.2, test=7, seed=4)
    assert [len(parts[name]) for name in ("train", "validation", "test")] == [50, 20, 7]
    together = np.concatenate(list(parts.values()))
    assert len(np.unique(together)) == 77
    again = split(many, train=50, validation=0.2, test=7, seed=4)
    assert all((again[name] == parts[name]).all() for name in parts)
    assert (split(many, train=50, validation=0.2, test=7, seed=5)["train"] != parts["train"]).any()
    assert len(split(many)["train"]) == 90


@pytest.mark.parametrize("by", ["formula", "file"])
def test_groups_stay_together(many, by):
    parts = split(many, validation=15, test=0.2, by=by, train=20)

    def key(index):
        return many.origin(index)[0] if by == "file" else int(many.counts[index])

    kinds = [{key(i) for i in parts[name]} for name in parts]
    assert not (kinds[0] & kinds[1])
    assert not (kinds[0] & kinds[2])
    assert not (kinds[1] & kinds[2])
    assert len(parts["validation"]) >= 15
    assert len(parts["test"]) >= 20


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (dict(train=99, validation=2), "at most the 100 frames"),
        (dict(validation=100), "train must be at least 1"),
        (dict(validation=0.001), "validation must be at least one frame, got 0.001 of 100"),
        (dict(validation=1.5), "a fraction below 1, got 1.5"),
        (dict(test=-1), "test must be a count or a fraction of frames, got -1"),
        (dict(by="colour"), "by frame, formula, file, got 'colour'"),
        (dict(by="file", validation=79, train=1, test=20), "needs more groups"),
    ],
)
def test_impossible_splits(many, asked, text):
    with pytest.raises(ValueError, match=text):
        split(many, **asked)


def test_a_written_split_belongs_to_its_store(many, tmp_path):
    with StoreWriter(tmp_path / "other") as writer:
        writer.add(molecule([8, 1, 1], energy=1.0), "file", 0)
    other = Store.open(tmp_path / "other")
    parts = split(many, test=5)
    write_split(tmp_path / "split.json", parts, many)
    found = read_split(tmp_path / "split.json", many)
    assert all((found[name] == parts[name]).all() for name in parts)
    with pytest.raises(ValueError, match="other data"):
        read_split(tmp_path / "split.json", other)
    content = json.loads((tmp_path / "split.json").read_text())
    (tmp_path / "split.json").write_text(json.dumps(content | {"test": [int(parts["train"][0])]}))
    with pytest.raises(ValueError, match="disjoint"):
        read_split(tmp_path / "split.json", many)
    with pytest.raises(FileNotFoundError, match="no split"):
        read_split(tmp_path / "nowhere", many)
