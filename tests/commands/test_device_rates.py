"""Rates: which products they are measured with, and that measuring leaves torch's settings alone."""

from collections import Counter

import pytest
import torch

from torchmdx.commands import device_rates as module
from torchmdx.commands.device_rates import cache_bytes, device_rates, l1_rate, product_rate
from torchmdx.commands.floors import PASSES, Rates, Work, floors

CUDA = torch.device("cuda")


@pytest.fixture
def fake(monkeypatch):
    """A GPU with rates that tell which product was measured."""
    rates = {
        (torch.float32, False): 50.0,
        (torch.float32, True): 390.0,
        (torch.float16, False): 750.0,
        (torch.bfloat16, False): 700.0,
        (torch.float64, False): 60.0,
    }
    monkeypatch.setattr(module, "product_rate", lambda device, dtype, *, tf32=False: rates[dtype, tf32])
    monkeypatch.setattr(module, "copy_rate", lambda device: 4.0)
    monkeypatch.setattr(module, "l1_rate", lambda device: 30.0)
    monkeypatch.setattr(module, "cache_bytes", lambda device: 7.0)


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("precision", "units", "products", "arithmetic"),
    [
        ("float32", {"fp16", "tf32"}, {"fp16": 750.0, "tf32": 390.0}, 50.0),
        ("half", {"tf32"}, {"tf32": 390.0}, 50.0),
        ("tf32", {"tf32"}, {"tf32": 390.0}, 50.0),
        ("bfloat16", {"bf16"}, {"bf16": 700.0}, 50.0),
        ("float64", {"float64"}, {"float64": 60.0}, 60.0),
        ("float32", set(), {}, 50.0),
    ],
)
def test_products_of_a_gpu_have_the_rates_of_its_tensor_cores(precision, units, products, arithmetic):
    found = device_rates(CUDA, precision, units)
    assert found == Rates(products=products, arithmetic=arithmetic, memory=4.0, l1=30.0, cache=7.0)


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(("kind", "rate"), [("tf32x3", 130.0), ("fp16x3", 250.0), ("tf32", 390.0), ("bf16", 700.0)])
def test_a_product_of_float32_takes_three(kind, rate):
    work = Work(products=Counter({kind: 1}))
    assert floors(work, device_rates(CUDA, "float32", work.units))["tensor cores"] == pytest.approx(1 / rate)


def test_every_kind_of_product_can_be_measured():
    assert {unit for unit, _ in PASSES.values()} == module.UNITS.keys()


@pytest.mark.usefixtures("fake")
def test_a_cpu_has_one_unit():
    found = device_rates(torch.device("cpu"), "float32", {"tf32"})
    assert found == Rates(products={}, arithmetic=50.0, memory=4.0, cache=7.0, one_unit=True)


def test_the_last_caches_of_a_cpu(tmp_path, monkeypatch):
    """Those of the highest level, each counted once: cores 0 and 1 share one, core 2 has another."""
    monkeypatch.setattr(module, "CACHES", tmp_path)
    assert cache_bytes(torch.device("cpu")) == 0
    for core, shared in enumerate(("0-1", "0-1", "2")):
        for level, size, of in ((1, "48K", str(core)), (3, "32768K", shared)):
            folder = tmp_path / f"cpu{core}" / "cache" / f"index{level}"
            folder.mkdir(parents=True)
            for name, text in (("level", level), ("size", size), ("shared_cpu_list", of)):
                (folder / name).write_text(f"{text}\n")
    assert cache_bytes(torch.device("cpu")) == 2 * 32 * 2**20


def test_measuring_restores_the_setting_of_products(monkeypatch):
    torch.backends.cuda.matmul.allow_tf32 = False
    seen = []
    monkeypatch.setattr(
        module, "_seconds", lambda run, device: seen.append(torch.backends.cuda.matmul.allow_tf32) or 0.5
    )
    assert product_rate(torch.device("cpu"), torch.float32, tf32=True) == 2.0 * 512**3 / 0.5
    assert seen == [True]
    assert not torch.backends.cuda.matmul.allow_tf32


def test_the_rate_of_l1_is_not_known_without_a_driver(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(module.ctypes, "CDLL", missing)
    assert l1_rate(CUDA) is None


@pytest.mark.gpu
def test_rates_of_a_gpu_are_plausible():
    found = device_rates(CUDA, "float32", {"fp16", "tf32"})
    assert 1e12 < found.arithmetic < found.products["tf32"] < found.products["fp16"]
    assert 1e11 < found.memory < found.l1
    assert 1e6 < found.cache < 1e10
