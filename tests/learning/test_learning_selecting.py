"""The stage of selection, and the map of an exploration."""

import math

import numpy as np
import pytest

from torchmdx.learning import selecting
from torchmdx.learning.exploring import Beginnings, read_frames
from torchmdx.learning.run_folder import RunFolder
from torchmdx.learning.selecting import map_of, pool_of, said
from torchmdx.learning.stage import read_json
from torchmdx.learning.structures import read_structures
from torchmdx.runtime.interrupt import Interrupts


def test_selected_frames_are_frames_of_the_exploration(finished):
    run = RunFolder(finished[0], Interrupts(), lambda text: None)
    result = read_json(run.place(1, "select") / "done.json")["result"]
    frames = read_frames(run, 1, Beginnings.of(run, 1))
    structures = read_structures(run.place(1, "select") / "chosen.extxyz")
    assert [one["why"] for one in result["chosen"]] == ["random", "uncertain", "uncertain"]
    for one, structure in zip(result["chosen"], structures, strict=True):
        _frame, replica, own = next(
            row for row in frames if row[0].uncertainty == one["uncertainty"] and row[0].step == one["step"]
        )
        assert replica.temperature == one["temperature"]
        np.testing.assert_allclose(own.positions, structure.positions, atol=1e-8)
    found = read_json(run.place(1, "select") / "map.json")
    assert len(found["explored"]) == 8
    assert len(found["labelled"]) == 4
    assert len(found["chosen"]) == 3


def test_the_pool_has_the_most_uncertain_frames_and_random_ones(monkeypatch):
    monkeypatch.setattr(selecting, "POOL", 10)
    uncertainty = np.arange(100.0)
    order = np.random.default_rng(0).permutation(100)
    pool = pool_of(np.arange(100), uncertainty, order)
    assert set(range(95, 100)) | set(order[:5].tolist()) == set(pool.tolist())
    assert pool_of(np.arange(10), uncertainty[:10], order).tolist() == list(range(10))


def test_the_map_shows_most_of_the_variance_and_the_median_distance():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(30, 5)) * [3, 2, 0.1, 0.1, 0.1]
    found = map_of(rows, 20, np.ones(20), [1, 3])
    assert found["share"] > 0.99
    # In the plane distances are those of the rows, nearly.
    a, b = found["explored"][0], found["labelled"][0]
    assert math.dist(a, b) == pytest.approx(math.dist(rows[0], rows[20]), abs=0.5)
    nearest = [min(math.dist(row, other) for other in rows[20:]) for row in rows[:20]]
    assert found["novelty"] == pytest.approx(np.median(nearest))
    assert found["chosen"][0] == found["explored"][1]


def test_a_map_of_one_component_or_of_nothing():
    assert map_of(np.zeros((3, 1)), 2, np.ones(2), [0])["explored"] == [[0.0, 0.0], [0.0, 0.0]]
    assert map_of(np.zeros((0, 1)), 0, np.zeros(0), [])["novelty"] is None


def test_the_line_says_what_was_left_out():
    chosen = [{"why": "random", "uncertainty": 0.1}, {"why": "uncertain", "uncertainty": 0.5}]
    result = {"chosen": chosen, "frames": 60, "broken": 2, "too_close": 1, "duplicates": 3}
    assert said(result, "eV/Å") == (
        "2 of 60 frames, 1 of them at random, uncertainty 0.100 to 0.500 eV/Å (2 too uncertain, 1 with atoms too "
        "close, 3 like labelled ones left out)"
    )
    assert said(result | {"chosen": [], "broken": 60, "too_close": 0, "duplicates": 0}, "eV/Å") == (
        "0 of 60 frames (60 too uncertain left out)"
    )
