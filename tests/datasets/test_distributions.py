"""Statistics and outliers of a store, against numbers worked out here."""

import json

import numpy as np
import pytest

from torchmdx.datasets.distributions import histogram, statistics, text
from torchmdx.datasets.frames import Frames
from torchmdx.datasets.store import Store, StoreWriter

H, O = -13.0, -2040.0


@pytest.fixture
def made(tmp_path):
    """60 waters and 40 hydrogens, charged +1 one in ten; waters 7 and 50 have an energy and a force that stand out."""
    generator = np.random.default_rng(5)
    frames = []
    for k in range(100):
        numbers = np.array([8, 1, 1] if k < 60 else [1, 1])
        frames.append(
            Frames.single(
                generator.normal(size=(len(numbers), 3)),
                numbers,
                charge=float(k % 10 == 0),
                energy=np.where(numbers == 8, O, H).sum() + generator.normal(scale=0.03) + 12.0 * (k == 7),
                forces=generator.uniform(-1, 1, size=(len(numbers), 3)) * (100 if k == 50 else 1),
                cell=9 * np.eye(3) if k == 2 else None,
                pbc=[True] * 3 if k == 2 else None,
                stress=np.eye(3) * 0.5 if k == 2 else None,
            )
        )
    with StoreWriter(tmp_path / "s", units={"energy": "kJ/mol"}) as writer:
        writer.add(Frames.concatenate(frames[:60]), "water.npz", 100)
        writer.add(Frames.concatenate(frames[60:]), "hydrogen.npz", 0)
    return Store.open(tmp_path / "s"), frames


def test_counts_and_spreads(made, monkeypatch):
    monkeypatch.setattr("torchmdx.datasets.distributions.CHUNK", 7)
    store, frames = made
    found = statistics(store)
    assert (found.num_frames, found.num_atoms, found.formulas, found.periodic) == (100, 260, 2, 1)
    assert found.elements == {1: 200, 8: 60}
    assert found.sizes == {2: 40, 3: 60}
    assert found.charges == {0.0: 90, 1.0: 10}
    assert found.files == {"water.npz": 60, "hydrogen.npz": 40}
    assert found.labelled == {"energy": 100, "forces": 100, "stress": 1, "charges": 0, "dipole": 0}
    assert found.references[1] == pytest.approx(H, abs=0.02)
    assert found.references[8] == pytest.approx(O, abs=0.02)  # the energy of frame 7 is an outlier
    every = np.concatenate([one.forces for one in frames]).astype(float)
    assert found.force_rms == pytest.approx(np.sqrt((every**2).mean()))
    assert found.forces.mean == pytest.approx(every.mean())
    assert found.forces.std == pytest.approx(every.std())
    assert (found.forces.min, found.forces.max) == (every.min(), every.max())
    bare = np.array([one.energy[0] - sum(found.references[z] for z in one.atomic_numbers) for one in frames])
    rest = bare / np.array([len(one.atomic_numbers) for one in frames])
    assert found.energy.std == pytest.approx(rest.std())
    assert found.energy.max == pytest.approx(rest[7])
    assert found.stress.max == 0.5


def test_outliers_with_their_origin(made):
    store, frames = made
    found = statistics(store)
    assert {(one.index, one.file, one.frame, one.quantity) for one in found.outliers} == {
        (7, "water.npz", 107, "energy"),
        (50, "water.npz", 150, "largest force"),
    }
    largest = np.array([np.linalg.norm(one.forces.astype(float), axis=1).max() for one in frames])
    deviation = np.median(np.abs(largest - np.median(largest))) / 0.6745
    force = next(one for one in found.outliers if one.quantity == "largest force")
    assert force.value == pytest.approx(largest[50])
    assert force.score == pytest.approx((largest[50] - np.median(largest)) / deviation)
    one = statistics(store, most_outliers=1)
    assert (one.num_outliers, len(one.outliers)) == (2, 1)


def test_text_and_json(made):
    store, _ = made
    found = statistics(store, most_outliers=1)
    written = text(found)
    assert "100 frames, 260 atoms, 2 formulas, 1 frame periodic" in written
    assert "water.npz (60), hydrogen.npz (40)" in written
    assert "frame 150" in written
    assert "... and 1 more" in written
    again = json.loads(json.dumps(found.json()))
    assert again["elements"] == {"1": 200, "8": 60}
    assert again["outliers"][0]["frame"] == 150


def test_forces_only(tmp_path):
    with StoreWriter(tmp_path / "s") as writer:
        for k in range(12):
            writer.add(Frames.single(np.zeros((1, 3)), np.array([1]), forces=np.full((1, 3), 1.0)), "f", k)
    found = statistics(Store.open(tmp_path / "s"))
    assert (found.energy, found.references, found.num_outliers) == (None, {}, 0)
    assert found.labelled == {"energy": 0, "forces": 12, "stress": 0, "charges": 0, "dipole": 0}
    assert "reference" in text(found)


def test_ranges_of_a_histogram_end_at_the_maximum():
    def labels(least, most, bins):
        return [line.split()[0] for line in histogram(dict.fromkeys(range(least, most + 1), 1), bins)]

    assert labels(10, 15, 12) == ["10", "11", "12", "13", "14", "15"]
    assert labels(10, 13, 2) == ["10-11", "12-13"]
    assert labels(10, 14, 2) == ["10-12", "13-14"]
    assert labels(10, 30, 12)[-2:] == ["28-29", "30"]
