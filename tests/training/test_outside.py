"""Training of a registered custom model."""

import made_up
import pytest
import torch
import yaml
from outside_model import Outside, OutsideConfig, registration  # noqa: F401 (used by every test)

import torchmdx
from torchmdx.commands.cli import main
from torchmdx.report.history import read_table
from torchmdx.training.config_file import make_config, read_config, write_text

MODEL = {"name": "outside", "num_channels": 12, "num_layers": 1, "cutoff": 4.0, "max_z": 8}


def values(directory, **changes):
    made = made_up.values(directory / "data")
    return made | {"model": MODEL | changes}


def test_it_trains_and_resumes(tmp_path):
    made_up.store(tmp_path / "data", number=60, sizes=(3, 5))
    config = values(tmp_path, settings={"steepness": 2.0})
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    words = ["train", str(tmp_path / "c.yaml"), "--output.directory", str(tmp_path / "run")]
    words += ["--output.report", "false", "--optimizer.learning_rate", "0.005", "--schedule.warmup_steps", "2"]
    assert main([*words, "--training.epochs", "6", "--schedule.name", "constant"]) == 0
    losses = read_table(tmp_path / "run" / "epochs.csv")["train_loss"]
    assert losses[-1] < 0.8 * losses[0]
    potential = torchmdx.load(tmp_path / "run" / "best.safetensors")
    assert isinstance(potential.network, Outside)
    assert potential.config == OutsideConfig(num_channels=12, num_layers=1, cutoff=4.0, max_z=8, steepness=2.0)
    again = [*words, "--training.epochs", "8", "--schedule.name", "constant", "--resume"]
    assert main(again) == 0
    assert len(read_table(tmp_path / "run" / "epochs.csv")["train_loss"]) == 8


def test_it_is_fine_tuned(tmp_path):
    made_up.store(tmp_path / "data", number=60, sizes=(3, 5))
    torch.manual_seed(0)
    before = torchmdx.Potential(OutsideConfig(num_channels=4, max_z=8))
    torchmdx.save(before, tmp_path / "before.safetensors")
    config = made_up.values(tmp_path / "data")
    config["finetune"] = {"checkpoint": str(tmp_path / "before.safetensors"), "references": "shift"}
    config["finetune"]["freeze"] = ["network.elements"]
    config["output"] = {"directory": str(tmp_path / "run"), "report": False}
    config["training"] = {**config.get("training", {}), "epochs": 1}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    assert main(["train", str(tmp_path / "c.yaml")]) == 0
    after = torchmdx.load(tmp_path / "run" / "last.safetensors")
    assert torch.equal(after.network.elements.weight, before.network.elements.weight)
    assert not torch.equal(after.network.mix.weight, before.network.mix.weight)


def test_a_written_configuration_can_be_read(tmp_path):
    config = make_config(values(tmp_path, settings={"steepness": 2.0}))
    (tmp_path / "again.yaml").write_text(write_text(config))
    again = read_config(tmp_path / "again.yaml")
    assert again == config
    assert again.model.network() == OutsideConfig(num_channels=12, num_layers=1, cutoff=4.0, max_z=8, steepness=2.0)
    changed = read_config(tmp_path / "again.yaml", ["--model.settings", "{steepness: 3e0}"])
    assert changed.model.network().steepness == 3.0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"group": "SO(3)"}, r"the model outside has no setting group, got 'SO\(3\)'"),
        ({"settings": {"colour": 1}}, "the model outside has no settings colour"),
        ({"settings": {"cutoff": 3.0}}, "model.settings must not repeat keys of the section: set model.cutoff"),
        ({"name": "elsewhere"}, "model must be one of .*, got 'elsewhere'.*torchmdx.register_model"),
        ({"name": "tensornet", "settings": {"steepness": 1.0}}, "the model tensornet has no settings steepness"),
    ],
    ids=str,
)
def test_settings_unknown_to_the_model_are_rejected(tmp_path, changes, said):
    with pytest.raises(ValueError, match=said):
        make_config(values(tmp_path, **changes))
