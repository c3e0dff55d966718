"""Copies of a structure: what they are, and that a split keeps them in one part."""

from dataclasses import replace

import numpy as np
import pytest

from torchmdx.datasets.copies import copy_groups
from torchmdx.datasets.frames import Frames
from torchmdx.datasets.splits import remarks_on_copies, split
from torchmdx.datasets.store import Store, StoreWriter


def row(numbers, start=0.0, **labels) -> Frames:
    """Atoms in a row, 1 Å apart, the first of them at `start` in all directions."""
    positions = start + np.arange(len(numbers))[:, None] * np.array([[0.0, 0, 1]])
    return Frames.single(positions, np.array(numbers), **labels)


@pytest.fixture
def twice(tmp_path) -> Store:
    """Sixty structures in two files, the second with other labels and, in text, positions rounded; ten more in a."""
    with StoreWriter(tmp_path / "twice") as writer:
        for file, rounding in (("a", 0.0), ("b", 4e-9)):
            for k in range(60):
                writer.add(row([8, 1], 0.01 * k + rounding, energy=float(k + rounding)), file, k)
        for k in range(10):
            writer.add(row([8, 1, 1], 0.01 * k, energy=1.0), "a", 60 + k)
    return Store.open(tmp_path / "twice")


def structures(store, indices) -> set:
    return {(int(store.counts[k]), round(float(store.gather([k]).positions[0, 0]), 3)) for k in indices}


@pytest.mark.parametrize("by", ["frame", "formula", "file"])
def test_copies_stay_in_one_part(twice, by):
    sizes = {"frame": dict(validation=0.2, test=20), "formula": dict(validation=0, test=8)}
    parts = split(twice, **sizes.get(by, dict(validation=0, test=50)), by=by, seed=1)
    kinds = [structures(twice, parts[name]) for name in ("train", "validation", "test")]
    assert not kinds[0] & kinds[1]
    assert not kinds[0] & kinds[2]
    assert not kinds[1] & kinds[2]
    assert sum(map(len, parts.values())) == 130
    assert sum(map(len, kinds)) == 70
    if by == "frame":
        assert 20 <= len(parts["test"]) <= 21
        assert 26 <= len(parts["validation"]) <= 27
    assert remarks_on_copies(twice, parts) == ["60 frames of 130 with the same structure as another frame"]


def test_copies_in_given_parts_are_warned_about(twice):
    parts = {"train": np.arange(0, 50), "validation": np.arange(60, 70), "test": np.arange(120, 130)}
    found = remarks_on_copies(twice, parts)
    assert "40 frames left out, with the same structure as frames of a part" in found
    warning = "warning: 10 frames of validation with the same structure as frames of train: errors on validation will"
    assert any(text.startswith(warning) for text in found)
    assert not any("frames of test" in text for text in found)


@pytest.mark.parametrize(
    ("change", "is_copy"),
    [
        ({}, True),
        ({"energy": np.array([7.0])}, True),
        ({"charge": np.array([1.0])}, False),
        ({"pbc": np.array([[True, True, False]])}, False),
        ({"cell": 5.01 * np.eye(3)[None]}, False),
        ({"positions": np.array([[0.0, 0, 0], [0, 0, 1.001]])}, False),
        ({"positions": np.array([[0.0, 0, 0], [0, 0, 1.0 + 1e-8]])}, True),
        ({"atomic_numbers": np.array([8, 1])}, False),
    ],
)
def test_what_makes_a_copy(change, is_copy):
    first = Frames.single(
        np.array([[0.0, 0, 0], [0, 0, 1]]), np.array([1, 8]), cell=5 * np.eye(3), pbc=[True] * 3, energy=1.0
    )
    assert copy_groups([first, replace(first, **change)]).tolist() == [0, 0 if is_copy else 1]


def test_isolated_atoms_and_an_empty_batch():
    none = Frames.concatenate([row([1])]).take(np.zeros(0, np.int64))
    assert copy_groups([none]).tolist() == []
    assert copy_groups([none, row([1]), row([2]), row([1])]).tolist() == [0, 1, 0]
