"""Low-rank adapters: what is trained, what files hold, resumed runs."""

import made_up
import pytest
import torch
from torch import nn

import torchmdx
from torchmdx.commands.cli import main
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.models.potential import Potential
from torchmdx.models.tensornet import TensorNetConfig
from torchmdx.training.adapters import add_adapters, merged


def potential():
    torch.manual_seed(1)
    return Potential(TensorNetConfig(num_channels=16, num_layers=1, num_radial=8, cutoff=4.0, max_z=8)).double()


def test_adapters_change_nothing_at_first_and_are_merged_into_weights():
    one, other = potential(), potential()
    count = add_adapters(one, 2, seed=0)
    trained = {name for name, weight in one.named_parameters() if weight.requires_grad}
    assert trained
    assert all(name.endswith((".up", ".down")) for name in trained)
    assert count == sum(weight.numel() for weight in one.parameters() if weight.requires_grad)
    assert count < sum(weight.numel() for weight in other.parameters())
    system = made_up.frames(1)[0].system(0)
    assert torch.equal(evaluate(one, system).energy, evaluate(other, system).energy)
    for module in one.modules():
        if hasattr(module, "up"):
            nn.init.normal_(module.up, std=0.1)
    plain = merged(one)
    assert plain.state_dict().keys() == other.state_dict().keys()
    torch.testing.assert_close(evaluate(plain, system).energy, evaluate(one, system).energy)
    assert not torch.equal(evaluate(plain, system).energy, evaluate(other, system).energy)
    before, after = other.state_dict(), plain.state_dict()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert {int(torch.linalg.matrix_rank(after[name] - before[name])) for name in changed} == {2}
    assert merged(other) is other
    with pytest.raises(ValueError, match="finetune.lora must be smaller than a linear map .* got 99"):
        add_adapters(potential(), 99, seed=0)


@pytest.mark.nightly
def test_a_training_of_adapters_writes_plain_potentials_and_is_resumed(tmp_path, capsys):
    store = made_up.store(tmp_path / "s", 40)
    model = {"num_channels": 16, "num_layers": 1, "num_radial": 8, "cutoff": 4.0, "max_z": 8}
    made_up.config_file(tmp_path, store.path, model=model, training={"epochs": 1})

    def run(name, *words):
        return main(["train", str(tmp_path / "c.yaml"), "--output.directory", str(tmp_path / name), *words])

    assert run("first") == 0
    first = tmp_path / "first" / "best.safetensors"
    lora = ["--finetune.checkpoint", str(first), "--finetune.lora", "2", "--schedule.name", "constant"]
    lora += ["--optimizer.learning_rate", "0.01", "--optimizer.ema_decay", "0"]
    assert run("whole", *lora, "--training.epochs", "2") == 0
    assert "adapters of rank 2: " in capsys.readouterr().err
    assert run("parts", *lora) == 0
    assert run("parts", *lora, "--training.epochs", "2", "--resume") == 0
    old, whole, parts = (
        torchmdx.load(path).state_dict()
        for path in (first, tmp_path / "whole" / "last.safetensors", tmp_path / "parts" / "last.safetensors")
    )
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    changed = {name for name in whole if not torch.equal(whole[name], old[name])}
    assert changed
    for name in changed:
        assert int(torch.linalg.matrix_rank((whole[name] - old[name]).double(), rtol=1e-4)) <= 2, name
    assert run("x", "--finetune.lora", "2") == 2
    assert "lora needs a checkpoint to fine-tune" in capsys.readouterr().err
