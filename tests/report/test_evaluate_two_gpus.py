"""`torchmdx evaluate --device cuda:1` gives the errors of GPU 0 and of the CPU."""

import json

import pytest
import torch

from torchmdx.checkpoints import save_load
from torchmdx.commands.cli import main

pytestmark = [pytest.mark.gpu, pytest.mark.two_gpus]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_errors_on_either_gpu(capsys, tmp_path, other, store, dtype):
    save_load.save(other, tmp_path / "other.safetensors")
    found = []
    for device in ("cpu", "cuda:0", "cuda:1"):
        arguments = [str(tmp_path / "other.safetensors"), str(store.path), "--device", device, "--dtype", dtype]
        assert main(["evaluate", *arguments, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["sets"][store.path.name])
    for name in ("energy", "forces"):
        on_cpu, on_first, on_second = (numbers[name]["mae"] for numbers in found)
        assert on_second == pytest.approx(on_first, rel=1e-5)
        assert on_second == pytest.approx(on_cpu, rel=1e-3)
    assert torch.cuda.current_device() == 0


def test_a_gpu_that_is_not_there(capsys, tmp_path, other, store):
    save_load.save(other, tmp_path / "other.safetensors")
    device = f"cuda:{torch.cuda.device_count()}"
    assert main(["evaluate", str(tmp_path / "other.safetensors"), str(store.path), "--device", device]) == 2
    assert f"device '{device}' is not available" in capsys.readouterr().err
