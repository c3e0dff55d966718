"""The arguments of pair_style torchmdx."""

import pytest
import torch

from torchmdx.lammps.settings import Settings


def test_all_arguments():
    found = Settings.parse(["a.safetensors", "precision", "float64", "device", "cpu", "charge", "-1"])
    assert found == Settings(model="a.safetensors", precision="float64", device="cpu", charge=-1.0)
    assert Settings.parse(["organic-1"]) == Settings(model="organic-1")
    words = "a.safetensors coulomb ewald coulomb_cutoff 9 coulomb_accuracy 1e-6"
    wanted = Settings(model="a.safetensors", coulomb="ewald", coulomb_cutoff=9.0, coulomb_accuracy=1e-6)
    assert Settings.parse(words.split()) == wanted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["precision"], "'precision' has no value"),
        (["cutoff", "5"], "got the option 'cutoff'"),
        (["precision", "float16"], "precision must be one of float32, float64, got 'float16'"),
        (["charge", "two"], "charge must be a number of elementary charges, got 'two'"),
        (["coulomb_cutoff", "long"], "coulomb_cutoff must be a number of Å, got 'long'"),
        (["charge", "nan"], "charge must be a number of elementary charges, got 'nan'"),
        (["charge", "1", "charge", "0"], "each option can be given once, got charge 1 charge 0"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Settings.parse(["organic-1", *arguments])


def test_processes_of_a_machine_take_its_gpus_in_turn(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [Settings(model="m").device_of(rank) for rank in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert Settings(model="m", device="cuda:1").device_of(0) == "cuda:1"
    assert Settings(model="m", device="cpu").device_of(1) == "cpu"
