"""Devices: the requested one, or the best available; an unavailable one is refused by name."""

import pytest
import torch

from torchmdx.runtime.devices import choose_device


def test_a_device_is_taken_as_asked():
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device(torch.device("cpu")) == torch.device("cpu")


@pytest.mark.parametrize(("count", "expected"), [(0, "cpu"), (1, "cuda")])
def test_none_takes_a_gpu_if_there_is_one(monkeypatch, count, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    assert choose_device(None) == torch.device(expected)


def test_what_is_missing_or_no_device_is_refused_by_the_name_of_the_option(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match=r"training.device 'cuda:1' is not available: torch sees 1 CUDA GPUs"):
        choose_device("cuda:1", "training.device")
    with pytest.raises(ValueError, match=r"device must be cpu or cuda, got 'tpu'"):
        choose_device("tpu")
