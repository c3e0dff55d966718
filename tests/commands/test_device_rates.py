"""Rates: which products they are measured with, and that measuring leaves torch's settings alone."""

import pytest
import torch

from torchmdx.commands import device_rates as module
from torchmdx.commands.device_rates import device_rates, l1_rate, product_rate

CUDA = torch.device("cuda")


@pytest.fixture
def fake(monkeypatch):
    """A GPU with rates that tell which product was measured."""
    rates = {
        (torch.float32, False): 50.0,
        (torch.float32, True): 390.0,
        (torch.bfloat16, False): 700.0,
        (torch.float64, False): 60.0,
    }
    monkeypatch.setattr(module, "product_rate", lambda device, dtype, *, tf32=False: rates[dtype, tf32])
    monkeypatch.setattr(module, "copy_rate", lambda device: 4.0)
    monkeypatch.setattr(module, "l1_rate", lambda device: 30.0)


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("precision", "products", "arithmetic"),
    [("float32", 130.0, 50.0), ("tf32", 390.0, 50.0), ("bfloat16", 700.0, 50.0), ("float64", 60.0, 60.0)],
)
def test_products_of_a_gpu_are_charged_at_the_rate_of_its_tensor_cores(precision, products, arithmetic):
    found = device_rates(CUDA, precision)
    assert (found.products, found.arithmetic, found.memory, found.l1) == (products, arithmetic, 4.0, 30.0)
    assert not found.one_unit


@pytest.mark.usefixtures("fake")
def test_a_cpu_has_one_unit():
    found = device_rates(torch.device("cpu"), "float32")
    assert (found.products, found.arithmetic, found.l1, found.one_unit) == (50.0, 50.0, None, True)


def test_measuring_restores_the_setting_of_products(monkeypatch):
    torch.backends.cuda.matmul.allow_tf32 = False
    seen = []
    monkeypatch.setattr(
        module, "_seconds", lambda run, device: seen.append(torch.backends.cuda.matmul.allow_tf32) or 0.5
    )
    assert product_rate(torch.device("cpu"), torch.float32, tf32=True) == 2.0 * 1024**3 / 0.5
    assert seen == [True]
    assert not torch.backends.cuda.matmul.allow_tf32


def test_the_rate_of_l1_is_not_known_without_a_driver(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(module.ctypes, "CDLL", missing)
    assert l1_rate(CUDA) is None


@pytest.mark.gpu
def test_rates_of_a_gpu_are_plausible():
    found = device_rates(CUDA, "float32")
    assert 1e12 < found.arithmetic < found.products * 3
    assert 1e11 < found.memory < found.l1
