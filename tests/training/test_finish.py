"""What a fine-tuning prints at its end: errors on the test set, which has chosen nothing."""

import re

import made_up
import numpy as np
import pytest
import yaml

import torchmdx
from torchmdx.commands.cli import main
from torchmdx.datasets.splits import read_split
from torchmdx.evaluation.derivatives import evaluate


def test_a_fine_tuning_is_judged_by_its_test_set(tmp_path, capsys):
    store = made_up.store(tmp_path / "s", 40)
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(made_up.values(store.path, training={"epochs": 1})))
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
