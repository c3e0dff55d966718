"""What a fine-tuning prints at its end: errors on the test set, which has chosen nothing."""

import re

import made_up
import numpy as np
import pytest
import torch
import yaml

import torchmdx
from torchmdx.checkpoints.save_load import load_one
from torchmdx.commands.cli import main
from torchmdx.datasets.splits import read_split
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.report.rigidity import add_uncertainty


def test_a_fine_tuning_is_judged_by_its_test_set(tmp_path, capsys):
    store = made_up.store(tmp_path / "s", 40)
    made_up.config_file(tmp_path, store.path, training={"epochs": 1})
    words = ["train", str(tmp_path / "c.yaml")]
    assert main([*words, "--output.directory", str(tmp_path / "first")]) == 0
    first = tmp_path / "first" / "best.safetensors"
    capsys.readouterr()
    assert main([*words, "--output.directory", str(tmp_path / "run"), "--finetune.checkpoint", str(first)]) == 0
    said = capsys.readouterr().out
    row = re.search(r"new frames \(test\)\s+forces\s+(\S+)\s+(\S+)\s+meV/Å", said)
    indices = read_split(tmp_path / "run" / "split.json", store)["test"]
    for shown, file in zip(row.groups(), (first, tmp_path / "run" / "best.safetensors"), strict=True):
        potential, errors = torchmdx.load(file), []
        for k in indices:
            frame = store.gather([k])
            errors.append(np.abs(evaluate(potential, frame.system(0)).forces.numpy() - frame.forces))
        wanted = 1000 * np.concatenate(errors).mean()
        assert float(shown.replace(",", "")) == pytest.approx(wanted, rel=5e-3)
    assert "test_" not in (tmp_path / "run" / "epochs.csv").read_text()


def trained(tmp_path, store, **sections):
    made_up.config_file(tmp_path, store.path, training={"epochs": 1}, **sections)
    assert main(["train", str(tmp_path / "c.yaml"), "--output.directory", str(tmp_path / "run")]) == 0
    return tmp_path / "run" / "best.safetensors"


@pytest.mark.nightly
def test_it_is_that_of_the_split(tmp_path, capsys):
    store = made_up.store(tmp_path / "s", 40)
    file = trained(
        tmp_path, store, data={"path": str(store.path), "validation": 12, "test": 0}, output={"report": True}
    )
    found, parts = torchmdx.load(file).uncertainty, read_split(tmp_path / "run" / "split.json", store)
    assert (found.num_frames, found.num_calibration) == (len(parts["train"]), 12)
    again = add_uncertainty(torchmdx.load(file), (store, parts["train"]), (store, parts["validation"])).uncertainty
    torch.testing.assert_close(found.covariance, again.covariance)
    assert found.factor == pytest.approx(again.factor)
    assert "uncertainty from 28 frames, by the errors of 12: factor" in capsys.readouterr().out
    numbers = (tmp_path / "run" / "report" / "errors.json").read_text()
    assert "energy_uncertainty" in numbers
    assert (tmp_path / "run" / "report" / "calibration_validation.png").is_file()
    assert "miscalibration area" in (tmp_path / "run" / "report" / "index.html").read_text()


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        (dict(data={"validation": 9}), "no uncertainty: a calibration needs at least 10 frames with an energy, got 9"),
        (dict(output={"uncertainty": False}), None),
    ],
)
def test_there_may_be_none(tmp_path, capsys, sections, said):
    store = made_up.store(tmp_path / "s", 24)
    given = {"data": {"path": str(store.path)} | sections.get("data", {}), "output": sections.get("output", {})}
    given["output"]["report"] = False
    assert torchmdx.load(trained(tmp_path, store, **given)).uncertainty is None
    out = capsys.readouterr().out
    assert (said in out) if said else ("uncertainty" not in out)


def test_heads_have_their_own(tmp_path):
    one, two = (made_up.store(tmp_path / name, 30, seed=seed) for name, seed in (("a", 1), ("b", 2)))
    values = made_up.values(one.path, training={"epochs": 1}, output={"report": False})
    values["data"] = {"heads": {"low": str(one.path), "high": str(two.path)}, "validation": 12}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(values))
    assert main(["train", str(tmp_path / "c.yaml"), "--output.directory", str(tmp_path / "run")]) == 0
    found = {name: load_one(tmp_path / "run" / "best.safetensors", head=name).uncertainty for name in ("low", "high")}
    assert (found["low"].num_calibration, found["high"].num_calibration) == (12, 12)
    assert not np.array_equal(found["low"].covariance, found["high"].covariance)
