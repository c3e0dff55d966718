"""Facts about machines: committed ones, and those that the driver tells."""

from types import SimpleNamespace

import pytest
import torch

from torchmdx.engines.plan import MACHINES, Machine, machine_named
from torchmdx.engines.plan import machine as machines
from torchmdx.runtime import card_records


@pytest.mark.parametrize("name", ["RTX 4090", "rtx4090", "RTX-4090", "rtx_4090"])
def test_a_card_has_a_name_in_any_spelling(name):
    assert machine_named(name) is MACHINES["RTX 4090"]
    assert str(MACHINES["RTX 4090"]) == "RTX 4090 (sm_89, 24 GiB)"


def test_an_unknown_card_is_refused():
    with pytest.raises(ValueError, match="card must be one of H200, H100, A100, .*, CPU, got 'V100'"):
        machine_named("V100")


@pytest.mark.parametrize(("count", "clusters"), [(132, 15), (16, 2)], ids=["whole chip", "part of one"])
def test_the_driver_tells_the_facts(monkeypatch, count, clusters):
    told = SimpleNamespace(
        name="NVIDIA H100", major=9, minor=0, multi_processor_count=count, total_memory=85 * 10**9,
        shared_memory_per_block_optin=232448,
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: told)
    machines._gpu.cache_clear()
    found = Machine.of(torch.device("cuda", 0))
    machines._gpu.cache_clear()
    assert (found.is_hopper, found.memory) == (True, 85 * 10**9)
    assert found.most_clusters(8) == clusters


@pytest.mark.parametrize(("name", "capability", "count", "wanted"), [
    ("NVIDIA GH200", (9, 0), 114, ((8, 13),)),
    ("NVIDIA GH200", (9, 0), 113, ()),  # another part of the same chip
    ("NVIDIA H20", (9, 0), 78, ()),
    ("NVIDIA GH200", (12, 0), 114, ()),
])  # fmt: skip
def test_a_card_that_was_tested_here_is_known(monkeypatch, tmp_path, name, capability, count, wanted):
    """By `torchmdx bench --all`, which keeps what it found in the cache."""
    monkeypatch.setenv("TORCHMDX_CACHE", str(tmp_path))
    assert card_records.clusters_of("NVIDIA GH200", 114) == 0
    assert card_records.keep_clusters("NVIDIA GH200", 114, 13) == str(tmp_path / "cards.json")
    card_records.keep_clusters("NVIDIA H800", 132, 15)  # the others stay
    told = SimpleNamespace(
        name=name, major=capability[0], minor=capability[1], multi_processor_count=count, total_memory=85 * 10**9,
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: told)
    machines._gpu.cache_clear()
    found = Machine.of(torch.device("cuda", 0))
    machines._gpu.cache_clear()
    assert found.clusters == wanted


def test_a_cpu_has_compiled_code_or_not(monkeypatch):
    monkeypatch.setattr("torchmdx.runtime.c_library.c_library", lambda name: None)
    found = Machine.of(torch.device("cpu"))
    assert (found.is_gpu, found.compiled, found.pair_kernels) == (False, False, False)
    assert Machine.of(torch.device("cpu"), code=False).compiled
