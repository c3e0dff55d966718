"""Every model and prior trains from the configuration."""

import made_up
import numpy as np
import pytest
import torch

import torchmdx
from torchmdx.commands.cli import main
from torchmdx.report.history import read_table

MODELS = {
    "tensornet2": ["--model.name", "tensornet2", "--model.num_charges", "3"],
    "charges and their energy": ["--model.name", "tensornet2", "--model.priors", "[{prior: coulomb}]"],
    "repulsion": ["--model.priors", "[{prior: zbl, strength: 0.001}]"],
    "longer head": ["--model.num_head_layers", "2"],
}


@pytest.mark.nightly_for("charges and their energy", "longer head", "tensornet2")
@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)
def test_training_reduces_errors_and_the_checkpoint_predicts_the_same(tmp_path, changes):
    made_up.store(tmp_path / "data", number=60, sizes=(3, 5))
    made_up.config_file(tmp_path, tmp_path / "data")
    words = ["train", str(tmp_path / "c.yaml"), "--output.directory", str(tmp_path / "run"), *changes]
    words += ["--training.epochs", "6", "--output.report", "false", "--schedule.warmup_steps", "2"]
    assert main([*words, "--optimizer.learning_rate", "0.005"]) == 0
    rows = read_table(tmp_path / "run" / "epochs.csv")
    losses = rows["train_loss"]
    assert losses[-1] < 0.8 * losses[0]
    potential = torchmdx.load(tmp_path / "run" / "last.safetensors", dtype=torch.float64)
    names = [config.name for config in potential.prior_configs]
    assert names == [name for name in ("coulomb", "zbl") if any(name in word for word in changes)]
    positions, numbers = made_up.molecule(np.random.default_rng(0), 4)
    result = torchmdx.evaluate(potential, torchmdx.System.create(positions, numbers))
    assert torch.isfinite(result.forces).all()
    assert (result.charges is not None) == ("tensornet2" in changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["--model.priors", "[{prior: zbn}]"], ", got 'zbn'"),
        (["--model.priors", "[{prior: zbl, cutof: 3}]"], "the prior zbl has no settings cutof"),
        (["--model.priors", "[{prior: coulomb}]"], "needs a model that predicts charges"),
        (["--model.name", "tensornet3"], "tensornet2"),
    ],
)
def test_unknown_models_and_priors_are_rejected(tmp_path, capsys, changes, said):
    made_up.store(tmp_path / "data")
    made_up.config_file(tmp_path, tmp_path / "data")
    assert main(["train", str(tmp_path / "c.yaml"), "--output.directory", str(tmp_path / "run"), *changes]) == 2
    assert said in capsys.readouterr().err
