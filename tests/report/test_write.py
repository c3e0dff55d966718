"""A whole report: its files, its page for people and browsers, its numbers for programs."""

import copy
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from frame_sets import frames_of, molecules, write_store

from torchmdx.report import evaluation
from torchmdx.report.predictor import Predictor, predict
from torchmdx.report.sources import source_names
from torchmdx.report.write import write_report
from torchmdx.training.logs import Logs

pytest.importorskip("matplotlib")

PICTURES = {
    "errors_by_element.png",
    "errors_by_size_energy.png",
    "errors_by_size_forces.png",
    "error_histogram_energy.png",
    "error_histogram_forces.png",
}
SETTINGS = dict(device="cpu", dtype=torch.float64)


class Page(HTMLParser):
    """Tags with their attributes, tables as lists of rows, and the text of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(self.source)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "img"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def report(tmp_path_factory, other, store) -> Path:
    """The page of a run of three epochs with two sets."""
    folder = tmp_path_factory.mktemp("run")
    logs = Logs(folder, ("csv",), {})
    for epoch in (1, 2, 3):
        values = {"lr": 1e-3 / epoch, "train_energy": 9.0 / epoch, "validation_forces": 40.0 / epoch}
        logs.epoch(epoch, 10 * epoch, values)
    logs.close()
    sets = {name: (store, np.arange(*ends)) for name, ends in (("train", (0, 12)), ("test", (12, 24)))}
    config = {"model": {"num_channels": 8}, "data": {"files": ["a.xyz", "b.xyz"], "seed": None}}
    return write_report(folder / "report", other, sets, history=folder, config=config, title="A run", **SETTINGS)


@pytest.mark.nightly
def test_the_numbers_are_those_of_the_predictions(report, other, store):
    numbers = json.loads((report.parent / "errors.json").read_text())
    assert list(numbers["sets"]) == ["train", "test"]
    for name, indices in (("train", np.arange(12)), ("test", np.arange(12, 24))):
        found, one = numbers["sets"][name], predict(other, store, indices, **SETTINGS)
        energy = np.abs(one.energy - one.frames.energy) / one.frames.counts
        forces = np.abs(one.forces - one.frames.forces)
        assert found["energy"]["mae"] == pytest.approx(1000 * energy.mean())
        assert found["forces"]["rmse"] == pytest.approx(1000 * np.sqrt((forces**2).mean()))
        assert found["forces"]["mae"] > 0.1
        assert (found["num_frames"], found["digest"]) == (12, store.digest)
        labels = one.frames.forces.astype(float)
        assert found["forces"]["median"] == pytest.approx(1000 * np.median(forces))
        assert found["energy"]["median"] == pytest.approx(1000 * np.median(energy))
        assert found["forces"]["label_std"] == pytest.approx(1000 * labels.std())
        relative = np.sqrt((forces**2).mean()) / labels.std()
        assert found["forces"]["rmse_over_label_std"] == pytest.approx(relative)
        worst = int(np.argmax(energy))
        assert found["worst_energy"][0]["file"] == store.origin(indices[worst])[0]
        assert found["worst_energy"][0]["frame"] == store.origin(indices[worst])[1]
        assert found["worst_energy"][0]["label"] == one.frames.energy[worst]
    frames = {entry["frame"] for entry in numbers["sets"]["test"]["worst_forces"] if entry["file"] == "data/second.xyz"}
    assert frames <= set(range(100, 108))
    assert len(frames) > 3
    assert numbers["environment"]["precision"] == "float64"
    assert numbers["environment"]["torch"].startswith(torch.__version__)


def test_the_page_shows_them(report):
    page, numbers = Page(report), json.loads((report.parent / "errors.json").read_text())["sets"]
    assert page.open == []
    assert ["", "train", "test"] in page.rows
    at = page.rows.index(["Forces, by component / meV/Å"])
    shown = [f"{numbers[name]['forces']['mae']:.3g}" for name in ("train", "test")]
    assert page.rows[at + 1][0] == "MAE"
    assert [float(value) for value in page.rows[at + 1][1:]] == [float(value) for value in shown]
    counts = [f"{numbers[name]['forces']['count']:,}" for name in ("train", "test")]
    assert [row[0] for row in page.rows[at + 2 : at + 7]] == [
        "median",
        "RMSE",
        "max",
        "labels' deviation",
        "RMSE / labels' deviation",
    ]
    assert page.rows[at + 7] == ["count", *counts]
    assert counts[0] == counts[1] == str(3 * 3 * (9 + 3 + 5 + 4))
    assert ["Stress, by component / GPa"] not in page.rows
    said = json.loads((report.parent / "errors.json").read_text())["verdict"]
    # Of a split, the test set counts, and there is one line.
    assert len(said) == 1
    assert said[0].startswith("test: Predicts forces ")
    assert said[0] in page.text
    for row in (["model.num_channels", "8"], ["data.seed", "none"], ["data.files", "['a.xyz', 'b.xyz']"]):
        assert row in page.rows
    assert ["precision", "float64"] in page.rows
    assert any(row[0] == "commit" for row in page.rows) or not (Path(__file__).parents[2] / ".git").exists()
    assert any(
        row[-1] == "data/second.xyz" and row[1] in map(str, range(100, 108)) for row in page.rows if len(row) > 6
    )
    for title in ("Errors", "Learning curves", "Predicted energies", "Predicted forces", "Worst frames", "Environment"):
        assert f"<h2>{title}</h2>" in page.source


def test_the_page_needs_nothing_else(report):
    page = Page(report)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object", "embed", "base"}
    assert [attributes for tag, attributes in page.tags if tag == "a"] == [{"href": "interactive.html"}]
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            assert name not in ("srcset", "onload", "onerror")
            assert name != "href" or tag == "a"
            assert name != "src" or value.startswith("data:image/png;base64,")
    assert not re.search(r"url\(|@import|https?:", page.source)
    policy = [
        a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert all(attributes["alt"] for attributes in images)
    files = {path.name for path in report.parent.glob("*.png")}
    assert {attributes["title"] for attributes in images} == files
    assert files == PICTURES | {"learning_curves.png"} | {
        f"parity_{kind}_{name}.png" for kind in ("energy", "forces") for name in ("train", "test")
    }
    assert not [path for path in report.parent.iterdir() if path.name.startswith(".")]


@pytest.mark.nightly
def test_what_others_wrote_is_escaped(tmp_path, other, potential):
    evil = "<script>alert('x')</script>&\"quoted\""
    frames = frames_of(molecules(8), potential)
    store = write_store(tmp_path / "s", frames, source=f"{evil}.xyz")
    index = write_report(
        tmp_path / "report",
        other,
        {f"{evil}": (store, np.arange(8))},
        history=None,
        config={evil: {"key": evil}},
        title=evil,
        **SETTINGS,
    )
    page = Page(index)
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.text.count(evil) > 5
    assert [f"{evil}.key", evil] in page.rows
    assert {path.name for path in index.parent.glob("parity*")} == {
        "parity_energy_script_alert_x_script_quoted.png",
        "parity_forces_script_alert_x_script_quoted.png",
    }


@pytest.mark.nightly
def test_kcal_on_request(tmp_path, other, store, report):
    sets = {"test": (store, np.arange(12, 24))}
    index = write_report(tmp_path / "kcal", other, sets, history=None, config=None, kcal=True, **SETTINGS)
    numbers, plain = (json.loads((path.parent / "errors.json").read_text())["sets"]["test"] for path in (index, report))
    assert numbers["energy_total"]["unit"] == "kcal/mol"
    for name in ("energy", "energy_total", "forces"):
        assert numbers[name]["mae"] * 1000 / 23.060548 == pytest.approx(plain[name]["mae"])
    page = Page(index)
    assert ["Forces, by component / kcal/mol/Å"] in page.rows
    assert "meV" not in page.text
    assert "Learning curves" not in page.text
    assert "Configuration" not in page.text


@pytest.mark.nightly
def test_stress_and_labels_that_are_missing(tmp_path, other, potential, crystal, cation):
    frames = frames_of([crystal, cation, crystal], potential)
    frames.energy[:] = np.nan
    store = write_store(tmp_path / "s", frames)
    index = write_report(tmp_path / "r", other, {"data": (store, np.arange(3))}, history=None, config=None, **SETTINGS)
    numbers, page = json.loads((index.parent / "errors.json").read_text()), Page(index)
    assert numbers["sets"]["data"]["stress"]["count"] == 18
    stress = predict(other, store, np.arange(3), **SETTINGS).stress[[0, 2]]
    labels = store.gather(np.array([0, 2])).stress.astype(float)
    in_gpa = numbers["sets"]["data"]["stress_GPa"]
    assert in_gpa["median"] == pytest.approx(160.2176634 * np.median(np.abs(stress - labels)), rel=1e-6)
    assert in_gpa["label_std"] == pytest.approx(160.2176634 * labels.std(), rel=1e-6)
    pictures = {path.name for path in index.parent.glob("*stress*")}
    assert pictures == {"parity_stress_data.png", "error_histogram_stress.png"}
    assert "<h2>Predicted stress</h2>" in page.source
    assert ["Stress, by component / GPa"] in page.rows
    assert ["Energy per atom / meV/atom"] not in page.rows
    assert "There are no labels of energies." in page.text
    assert not list(index.parent.glob("parity_energy*"))
    assert (index.parent / "parity_forces_data.png").exists()


@pytest.mark.nightly
def test_empty_sets_are_left_out(tmp_path, other, store):
    sets = {"train": (store, np.arange(4)), "test": (store, np.arange(0))}
    index = write_report(tmp_path / "r", other, sets, history=tmp_path, config=None, **SETTINGS)
    assert list(json.loads((index.parent / "errors.json").read_text())["sets"]) == ["train"]
    with pytest.raises(ValueError, match="there must be a frame to evaluate, got none"):
        write_report(tmp_path / "r", other, {"test": sets["test"]}, history=None, config=None, **SETTINGS)


def test_progress_names_the_set(other, store, monkeypatch):
    monkeypatch.setattr(evaluation, "Predictor", lambda *a, **k: Predictor(*a, **k, atoms=30))
    seen = []
    sets = {"a": (store, np.arange(10)), "b": (store, np.arange(5))}
    evaluation.evaluate_sets(other, sets, **SETTINGS, progress=lambda *done: seen.append(done))
    assert [one for one in seen if one[0] == "a"][-1] == ("a", 10, 10)
    assert seen[-1] == ("b", 5, 5)
    assert len(seen) == 3


@pytest.mark.nightly
def test_sets_whose_names_are_alike_have_files_of_their_own(tmp_path, other, store):
    sets = {name: (store, np.arange(3)) for name in ("a b", "a/b", "A_B", "..")}
    index = write_report(tmp_path / "r", other, sets, history=None, config=None, **SETTINGS)
    assert {path.name for path in index.parent.glob("parity_forces*")} == {
        f"parity_forces_{slug}.png" for slug in ("a_b", "a_b_2", "a_b_3", "set")
    }


def test_a_full_disk_leaves_the_report_that_was_there(report, other, store, monkeypatch):
    before = {path.name: path.read_bytes() for path in report.parent.iterdir()}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torchmdx.runtime.files.os.fsync", full)
    sets = {"train": (store, np.arange(3))}
    with pytest.raises(OSError, match="No space left"):
        write_report(report.parent, other, sets, history=None, config=None, **SETTINGS)
    assert {path.name: path.read_bytes() for path in report.parent.iterdir()} == before


def test_zero_has_no_sign_and_names_are_in_the_title(tmp_path, other, store):
    near = copy.deepcopy(other)
    near.reference_energies[3] = -1e-7
    sets = {"test": (store, np.arange(3))}
    index = write_report(tmp_path / "r", near, sets, history=None, config=None, title="m on d", **SETTINGS)
    (energies,) = (row[1] for row in Page(index).rows if row[0] == "reference energies / eV")
    assert "Li 0.0000" in energies
    assert "-0.0000" not in energies
    assert "<title>m on d</title>" in index.read_text()
    assert source_names(store) == "first.xyz, second.xyz"
