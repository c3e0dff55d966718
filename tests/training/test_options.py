"""Effect of each setting on the results."""

import made_up
import numpy as np
import pytest
import torch
import yaml

import torchmdx
from torchmdx.commands.cli import main
from torchmdx.datasets.splits import split, write_split
from torchmdx.report.history import read_table


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return made_up.store(tmp_path_factory.mktemp("data") / "st", 60)


def trainer(folder, data):
    """train(name, *changes): the directory of a run of two epochs in a folder."""
    path = made_up.config_file(folder, data.path, training={"epochs": 2})

    def run(name, *changes):
        assert main(["train", str(path), "--output.directory", str(folder / name), *changes]) == 0
        return folder / name

    return run


@pytest.fixture
def train(tmp_path, data):
    return trainer(tmp_path, data)


@pytest.fixture(scope="module")
def plain(tmp_path_factory, data):
    """The directory of a run without changes."""
    return trainer(tmp_path_factory.mktemp("plain"), data)("plain")


def steps(directory):
    return read_table(directory / "steps.csv")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "change",
    [
        ["--loss.energy.weight", "3"],
        ["--loss.forces.function", "mae"],
        ["--loss.forces.final_weight", "7"],
        ["--optimizer.learning_rate", "0.004"],
        ["--optimizer.weight_decay", "30"],
        ["--optimizer.beta1", "0.5"],
        ["--optimizer.beta2", "0.9"],
        ["--optimizer.epsilon", "0.1"],
        ["--optimizer.clip_norm", "0.01", "--optimizer.epsilon", "0.01"],
        ["--schedule.name", "constant"],
        ["--schedule.warmup_steps", "0"],
        ["--schedule.final_factor", "0.9"],
        ["--training.seed", "4"],
        ["--training.precision", "float64"],
        ["--data.seed", "5"],
        ["--data.references", "zero"],
        ["--data.scale", "2.5"],
        ["--data.train", "24"],
        ["--model.cutoff", "3.5"],
        ["--model.num_radial", "12"],
        ["--model.radial_basis", "gauss"],
        ["--model.trainable_basis", "true"],
        ["--model.activation", "tanh"],
        ["--model.group", "SO(3)"],
        ["--model.num_layers", "2"],
    ],
    ids=lambda change: change[0][2:],
)
def test_settings_change_what_is_learned(train, plain, change):
    a, b = steps(plain)["loss"], steps(train("b", *change))["loss"]
    assert len(a) != len(b) or not np.array_equal(a, b)


@pytest.mark.nightly
def test_settings_that_do_not_change_losses(train, plain, data, tmp_path):
    expected = steps(plain)["loss"].tolist()
    for name, change in {
        "average": ["--optimizer.ema_decay", "0.5"],
        "ahead": ["--training.prefetch", "1"],
        "strict": ["--training.deterministic", "true"],
        "validated": ["--training.validation_batch_size", "5"],
    }.items():
        assert steps(train(name, *change))["loss"].tolist() == expected, name
    write_split(tmp_path / "s.json", split(data, validation=12, test=8, seed=0), data)
    assert steps(train("split", "--data.split", str(tmp_path / "s.json")))["loss"].tolist() == expected
    directories = (plain, tmp_path / "average", tmp_path / "ahead")
    weights = [torchmdx.load(directory / "last.safetensors").head for directory in directories]
    vectors = [torch.cat([w.flatten() for w in head.parameters()]) for head in weights]
    assert not torch.equal(vectors[0], vectors[1])
    assert torch.equal(vectors[0], vectors[2])


@pytest.mark.nightly
def test_intervals_of_rows_and_checkpoints(train):
    directory = train("a", "--output.log_every", "3", "--training.epochs", "5", "--training.validate_every", "2")
    assert steps(directory)["step"].tolist() == list(range(3, 26, 3))
    validated = ~np.isnan(read_table(directory / "epochs.csv")["validation_loss"])
    assert validated.tolist() == [False, True, False, True, True]
    other = train("b", "--output.loggers", "[]", "--training.batch_size", "20")
    assert not (other / "steps.csv").exists()


def test_the_learning_rate_follows_the_schedule(train):
    rate = steps(train("a", "--schedule.name", "constant", "--schedule.warmup_steps", "3"))["lr"]
    np.testing.assert_allclose(rate[:5], [0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3])


@pytest.mark.nightly
def test_weights_of_terms_change_over_the_epochs(train):
    changes = ["--loss.energy.final_weight", "0", "--loss.change_to", "0.5", "--loss.energy.weight", "4"]
    found = steps(train("a", *changes))
    weights = (found["loss"] - found["forces_loss"]) / found["energy_loss"]
    np.testing.assert_allclose(weights, [4, 3.2, 2.4, 1.6, 0.8, 0, 0, 0, 0, 0], atol=1e-3)


@pytest.mark.nightly
def test_splits_by_formula_share_no_formula(train, data):
    directory = train("a", "--data.split_by", "formula", "--data.validation", "0.2", "--data.test", "0")
    import json

    parts = json.loads((directory / "split.json").read_text())
    formulas = {}
    for name in ("train", "validation"):
        formulas[name] = {tuple(sorted(data.gather([k]).atomic_numbers)) for k in parts[name]}
    assert not formulas["train"] & formulas["validation"]


@pytest.mark.nightly
def test_charges_and_dipoles_are_trained_and_reported(tmp_path, capsys):
    data = made_up.store(tmp_path / "st", 60, change=lambda index, frame: made_up.charged(frame))
    values = made_up.values(data.path, training={"epochs": 8}, optimizer={"learning_rate": 0.01, "ema_decay": 0.0})
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(values))
    words = ["train", str(tmp_path / "c.yaml"), "--loss.charges.weight", "10", "--loss.dipole.weight", "1"]
    assert main([*words, "--output.directory", str(tmp_path / "no")]) == 2
    assert "loss.charges.weight must be 0 for a model without partial charges (model.name: tensornet2" in (
        capsys.readouterr().err
    )
    run = tmp_path / "run"
    assert main([*words, "--model.name", "tensornet2", "--model.num_charges", "2", "--output.directory", str(run)]) == 0
    assert " me, dipole " in capsys.readouterr().out
    epochs = read_table(run / "epochs.csv")
    assert epochs["validation_charges"][-1] < 0.7 * epochs["validation_charges"][0]
    assert epochs["validation_dipole"][-1] < epochs["validation_dipole"][0]
    assert steps(run)["charges_loss"].min() > 0
