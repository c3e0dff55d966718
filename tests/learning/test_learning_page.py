"""The page of a run has the numbers of its files, and structures of what was selected."""

import base64
import json
import re

import numpy as np
import pytest

from torchmdx.learning import page
from torchmdx.learning.page import page_data, write
from torchmdx.learning.run_folder import RunFolder
from torchmdx.learning.stage import read_json
from torchmdx.learning.stop import Ending, RoundRecord
from torchmdx.learning.structures import read_structures
from torchmdx.runtime.interrupt import Interrupts

pytest.importorskip("plotly")


@pytest.fixture(scope="module")
def data(finished):
    text = (finished[1] / "learn.html").read_text(encoding="utf-8")
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def done(folder, number, stage):
    found = read_json(folder / f"round-00{number}" / stage / "done.json")
    return found["result"] | {"seconds": found["seconds"]}


def test_rounds_have_the_numbers_of_their_stages(finished, data):
    folder = finished[1]
    assert [one["number"] for one in data["rounds"]] == [0, 1, 2]
    for number in (1, 2):
        one, explored, labelled = data["rounds"][number], done(folder, number, "explore"), done(folder, number, "label")
        assert one["uncertainty"] == explored["uncertainty"]
        assert one["median"] == explored["median"]
        assert one["force_rmse"] == labelled["errors"]["all"]["force_rmse"]
        assert one["random_force_rmse"] == labelled["errors"]["random"]["force_rmse"]
        assert one["new_labels"] == 3
        stages = ("explore", "select", "label", "train")
        assert one["seconds"] == {name: done(folder, number, name)["seconds"] for name in stages}
        assert data["maps"][number] == read_json(folder / f"round-00{number}" / "select" / "map.json")
    assert [one["labels"] for one in data["rounds"]] == [4, 7, 10]
    assert data["rounds"][0]["uncertainty"] is None


def test_selected_frames_have_their_reasons_and_their_structures(finished, data):
    folder = finished[1]
    assert len(data["frames"]) == len(data["captions"]) == 10
    assert [one["why"] for one in data["frames"]] == ["start"] * 4 + ["random", "uncertain", "uncertain"] * 2
    chosen, errors = done(folder, 1, "select")["chosen"], done(folder, 1, "label")["errors"]["frames"]
    for one, mine, error in zip(data["frames"][4:7], chosen, errors, strict=True):
        assert (one["uncertainty"], one["distance"]) == (mine["uncertainty"], mine["distance"])
        assert (one["force_error"], one["energy_error"]) == (error["force_error"], error["energy_error"])
    assert data["captions"][4] == f"round 1: start.extxyz, {chosen[0]['temperature']:g} K, step {chosen[0]['step']}"
    packed = np.frombuffer(base64.b64decode(data["positions"]), "<i2").reshape(10, 4, 3) * data["scale"]
    structure = read_structures(folder / "round-001" / "select" / "chosen.extxyz")[0]
    # The same vectors between atoms, but for whole lattice vectors.
    found, expected = packed[4] - packed[4][0], structure.positions - structure.positions[0]
    whole = (found - expected) @ np.linalg.inv(structure.cell)
    np.testing.assert_allclose(whole, np.round(whole), atol=1e-3)


def test_the_page_says_whether_the_run_converged(finished, data):
    assert data["summary"].startswith("2 rounds, 10 labels, ")
    assert data["summary"].endswith(
        "not converged: the budget of 2 rounds is spent; no target of uncertainty or error was set"
    )
    run = RunFolder(finished[0], Interrupts(), print)
    records = [RoundRecord(0)]
    assert page_data(run, [{}], records, None)["summary"].endswith("the run continues")
    assert page_data(run, [{}], records, Ending(True, "so"))["summary"].endswith("converged: so")


def test_many_frames_are_thinned_over_all_rounds(finished, monkeypatch):
    run = RunFolder(finished[0], Interrupts(), print)
    results = [
        {name: done(finished[1], number, name) for name in (("start", "label") if not number else ("select", "label"))}
        for number in range(2)
    ]
    monkeypatch.setattr(page, "MOST_FRAMES", 3)
    found = page_data(run, results, [RoundRecord(0), RoundRecord(1)], None)
    assert found["notes"] == ["3 of 7 labelled frames are shown."]
    assert [one["round"] for one in found["frames"]] == [0, 0, 1]


def test_without_plotly_a_line_says_so(finished, tmp_path, monkeypatch, capsys):
    def missing():
        raise ImportError("interactive pages need plotly, which is not installed")

    monkeypatch.setattr(page, "require_plotly", missing)
    run = RunFolder(finished[0], Interrupts(), print)
    assert not write(run, tmp_path / "learn.html", [{}], [RoundRecord(0)], None)
    assert "no page: interactive pages need plotly" in capsys.readouterr().err
