import base64
import json
import re

import numpy as np
import pytest
import torch

from torchmdx.report.evaluation import evaluate_sets
from torchmdx.report.interactive import write_interactive
from torchmdx.report.predictor import predict
from torchmdx.report.scales import KCAL, MILLI_EV
from torchmdx.structures.units import KCAL_PER_MOL

pytest.importorskip("plotly")

SETTINGS = dict(device="cpu", dtype=torch.float64)


def data_of(path):
    text = path.read_text(encoding="utf-8")
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def array(text, dtype):
    return np.frombuffer(base64.b64decode(text), dtype)


@pytest.fixture(scope="module")
def found(other, store):
    sets = {"train": (store, np.arange(0, 16)), "test": (store, np.arange(16, 24))}
    return evaluate_sets(other, sets, **SETTINGS)


def written(path, found, units=MILLI_EV, **settings):
    kept = {name: errors.kept for name, errors in found.errors.items()}
    assert write_interactive(path, kept, found.stores, units, title="A <run>", **settings)
    return data_of(path)


@pytest.mark.parametrize(("units", "factor"), [(MILLI_EV, 1.0), (KCAL, 1 / KCAL_PER_MOL)], ids=["eV", "kcal"])
def test_dots_are_labels_and_predictions_of_named_frames(tmp_path, found, other, store, units, factor):
    data = written(tmp_path / "page.html", found, units)
    assert data["title"] == "A <run>"
    assert [one["name"] for one in data["sets"]] == ["train", "test"]
    assert [one["start"] for one in data["sets"]] == [0, 16]
    assert data["captions"][0] == "first.xyz, frame 0"
    assert data["captions"][16] == "second.xyz, frame 100"
    expected = predict(other, store, np.arange(24), **SETTINGS)
    frames = expected.frames
    references = other.reference_energies.numpy()
    base = np.array([references[frames.atomic_numbers[frames.frame_index == k]].sum() for k in range(24)])
    for name, energy in (("label", frames.energy), ("predicted", expected.energy)):
        shown = np.concatenate([one[name] for one in data["sets"]])
        assert shown == pytest.approx(factor * (energy - base) / frames.counts, rel=1e-5, abs=1e-6)
    assert data["units"]["energyFactor"] == pytest.approx(1000.0 if factor == 1.0 else 1.0)
    forces = array(data["forces"], "<f4")
    start = 0
    for k in range(24):
        size = 3 * frames.counts[k]
        own = frames.frame_index == k
        assert forces[start : start + size] == pytest.approx(factor * frames.forces[own].ravel(), rel=1e-5, abs=1e-6)
        assert forces[start + size : start + 2 * size] == pytest.approx(
            factor * expected.forces[own].ravel(), rel=1e-5, abs=1e-6
        )
        start += 2 * size
    one = data["sets"][1]
    assert len(array(one["place"], "<u2")) == 3 * frames.counts[16:].sum()
    assert array(one["component"], "<u2")[: 3 * frames.counts[16]].tolist() == list(range(3 * frames.counts[16]))
    assert data["notes"] == []


def test_positions_are_not_rotated(tmp_path, found, store):
    """Errors of forces are drawn on them."""
    data = written(tmp_path / "page.html", found)
    frames = store.gather(np.arange(1))
    shown = array(data["positions"], "<i2")[: 3 * frames.counts[0]].reshape(-1, 3) * data["scale"]
    expected = frames.positions[: frames.counts[0]]
    assert shown == pytest.approx(expected - expected.mean(0), abs=1e-3)


def test_a_page_of_large_sets_is_a_sample(tmp_path, found, monkeypatch):
    monkeypatch.setattr("torchmdx.report.interactive.MOST_FRAMES", 12)
    data = written(tmp_path / "page.html", found)
    assert len(data["captions"]) == 12
    assert data["notes"] == ["12 of 24 frames are shown: a random sample, and the largest errors."]


def test_without_plotly_one_line_says_so(tmp_path, found, monkeypatch, capsys):
    def refuse():
        raise ImportError("interactive pages need plotly")

    monkeypatch.setattr("torchmdx.report.interactive.require_plotly", refuse)
    kept = {name: errors.kept for name, errors in found.errors.items()}
    assert not write_interactive(tmp_path / "page.html", kept, found.stores, MILLI_EV, title="t")
    assert capsys.readouterr().err == "no interactive page: interactive pages need plotly\n"
    assert list(tmp_path.iterdir()) == []
