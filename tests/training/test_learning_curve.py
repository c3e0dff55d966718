"""Learning curves: nested training frames, one test set, a table and a picture; runs that go on."""

import csv
import json
import sys

import made_up
import numpy as np
import pytest
import yaml

from torchmdx.commands.cli import main
from torchmdx.training.learning_curve import lines, sizes_of


@pytest.mark.nightly
def test_more_frames_in_nested_parts(tmp_path, capsys):
    store = made_up.store(tmp_path / "s", 60)
    made_up.config_file(tmp_path, store.path, training={"epochs": 2})
    words = ["train", str(tmp_path / "c.yaml"), "--output.directory", str(tmp_path / "run"), "--learning-curve", "9,18"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "RMSE as a power of the number of frames: energy" in said
    rows = list(csv.DictReader((tmp_path / "run" / "learning_curve.csv").read_text().splitlines()))
    assert [int(row["frames"]) for row in rows] == [9, 18]
    assert all(float(value) > 0 for row in rows for value in row.values())
    assert (tmp_path / "run" / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    small, large = (json.loads((tmp_path / "run" / f"train-{n}" / "split.json").read_text()) for n in (9, 18))
    assert set(small["train"]) < set(large["train"])
    assert (small["test"], small["validation"]) == (large["test"], large["validation"])
    assert main(words) == 0
    assert "train-9: finished before" in capsys.readouterr().err


def test_exponents_are_those_of_powers():
    rows = [(n, *(3.0 * n**power for power in (-1.0, -0.5, -0.25, -0.75))) for n in (10, 100, 1000)]
    assert lines(rows, "test")[-1].endswith("energy -0.50, forces -0.75")


@pytest.mark.parametrize("text", ["100", "300,100", "a,b", "0,5", "5,5"])
def test_sizes_must_increase(text):
    with pytest.raises(ValueError, match="needs increasing numbers of frames, as 100,300,1000, got"):
        sizes_of(text)
    assert np.all(np.array(sizes_of("1, 20")) == [1, 20])


def test_what_a_curve_cannot_have_is_refused_before_it_trains(tmp_path, monkeypatch, capsys):
    values = made_up.values("", data={"heads": {"low": "x.xyz"}})
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(values))
    words = ["train", str(tmp_path / "c.yaml"), "--output.directory", str(tmp_path / "run"), "--learning-curve", "9,18"]
    assert main(words) == 2
    assert "data.heads and data.split must not be given" in capsys.readouterr().err
    assert main([*words, "--set", "optimizer.learning_rate=1e-4"]) == 2
    assert "--set changes a single run that is resumed, got 'optimizer" in capsys.readouterr().err
    made_up.config_file(tmp_path, tmp_path / "none")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(words) == 2
    assert "pictures need matplotlib" in capsys.readouterr().err
