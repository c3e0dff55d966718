"""Choice of the training device, on a machine with fake GPUs."""

import pytest
import torch

from torchmdx.training.config_file import make_config
from torchmdx.training.distributed import join
from torchmdx.training.run import _device


@pytest.fixture
def gpus(monkeypatch):
    """gpus(count): pretends that there are this many GPUs."""

    def there(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return there


def device_of(asked):
    return _device(make_config({"data": {"path": "none.xyz"}, "training": {"device": asked}}))


@pytest.mark.parametrize(
    ("asked", "count", "device"),
    [("auto", 0, "cpu"), ("auto", 2, "cuda"), ("cpu", 2, "cpu"), ("cuda", 1, "cuda"), ("cuda:1", 2, "cuda:1")],
)
def test_the_requested_device_is_used(gpus, asked, count, device):
    gpus(count)
    assert device_of(asked) == torch.device(device)


def test_unavailable_gpus_are_rejected(gpus):
    gpus(2)
    with pytest.raises(ValueError, match="training.device 'cuda:2' is not available: torch sees 2 CUDA GPUs"):
        device_of("cuda:2")
    gpus(0)
    with pytest.raises(ValueError, match="training.device 'cuda:1' is not available: torch sees 0 CUDA GPUs"):
        device_of("cuda:1")


def test_processes_of_torchrun_use_one_gpu_each(gpus, monkeypatch):
    gpus(2)
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="training.device must be cuda for processes started by torchrun, got cuda:1"):
        join(torch.device("cuda:1"))
