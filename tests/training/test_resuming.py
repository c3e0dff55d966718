"""Settings that are changed, with a word about it, when a run is resumed."""

import made_up
import pytest

from torchmdx.commands.cli import main
from torchmdx.report.history import read_table
from torchmdx.training.config_file import read_config
from torchmdx.training.state import read_state


@pytest.fixture
def run(tmp_path):
    """A run of one epoch, and a function that resumes it."""
    store = made_up.store(tmp_path / "s", 40)
    made_up.config_file(tmp_path, store.path, schedule={"name": "constant", "warmup_steps": 0})

    def call(*words):
        return main(["train", str(tmp_path / "c.yaml"), "--output.directory", str(tmp_path / "run"), *words])

    assert call("--training.epochs", "1") == 0
    return call


def state(tmp_path):
    return read_state(tmp_path / "run" / "state.safetensors")[1]


def test_a_declared_change_is_used_printed_and_recorded(tmp_path, run, capsys):
    assert run("--resume", "--set", "optimizer.learning_rate=1e-4", "--training.epochs", "2") == 0
    assert "changed from epoch 2 on: optimizer.learning_rate: 0.001 -> 0.0001" in capsys.readouterr().err
    assert read_table(tmp_path / "run" / "epochs.csv")["lr"].tolist() == [1e-3, 1e-4]
    info = state(tmp_path)
    assert info["changes"] == [{"epoch": 1, "step": 2, "settings": {"optimizer.learning_rate": [0.001, 0.0001]}}]
    assert info["config"]["optimizer"]["learning_rate"] == 1e-4
    assert read_config(tmp_path / "run" / "config.yaml").optimizer.learning_rate == 1e-4
    # The same file still says 1e-3: the change that was declared stays.
    assert run("--resume", "--training.epochs", "3") == 0
    assert "changed" not in capsys.readouterr().err
    assert read_table(tmp_path / "run" / "epochs.csv")["lr"].tolist() == [1e-3, 1e-4, 1e-4]
    assert len(state(tmp_path)["changes"]) == 1


def test_a_changed_loss_compares_validation_losses_anew(tmp_path, run):
    assert run("--resume", "--set", "loss.energy.weight=1000", "--training.epochs", "2") == 0
    info = state(tmp_path)
    assert info["best_epoch"] == 2
    assert info["best"] > 100 * read_table(tmp_path / "run" / "epochs.csv")["validation_loss"][0] / 100


def test_other_changes_are_refused(run, capsys):
    refused = {
        "--set may change optimizer.*, schedule.*, loss.*": ["--resume", "--set", "model.num_layers=2"],
        "--set needs KEY=VALUE, as optimizer.learning_rate=1e-4, got 'loss'": ["--resume", "--set", "loss"],
        "unknown key 'optimizer.rate'": ["--resume", "--set", "optimizer.rate=1"],
        "optimizer.learning_rate was 0.001, got 0.1": ["--resume", "--optimizer.learning_rate", "0.1"],
        "already holds a training run": ["--set", "optimizer.learning_rate=1"],
    }
    for said, words in refused.items():
        assert run(*words) == 2
        assert said in capsys.readouterr().err
