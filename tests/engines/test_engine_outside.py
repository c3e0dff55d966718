"""An engine of another architecture with a kernel of its own: examples/17_add_an_engine.py keeps the contract."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch
from interpreter import DEVICE, INTERPRETED, needs_kernels

import torchmdx
from torchmdx import CapturedStep, System
from torchmdx.engines.conformance import check_engine
from torchmdx.engines.plan import Network, Workload, machine_named, plan
from torchmdx.engines.registry import registered
from torchmdx.neighbors.brute_force import brute_force

EXAMPLE = Path(__file__).parents[2] / "examples" / "17_add_an_engine.py"
SMALL = dict(num_channels=4, num_layers=1, num_radial=4, max_z=9)


@pytest.fixture
def example(monkeypatch):
    """The module of the example, which registers its model and its engine for one test."""
    pytest.importorskip("triton")
    # The example asks for the interpreter where there is no GPU, for the rest of the process unless it is set.
    monkeypatch.setenv("TRITON_INTERPRET", "1" if INTERPRETED else "0")
    spec = importlib.util.spec_from_file_location("add_an_engine", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def potential_of(example, device="cpu", **settings):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torchmdx.Potential(example.PaiNNConfig(**SMALL | settings)).to(device)


@pytest.mark.parametrize(
    ("facts", "engine", "said"),
    [
        (dict(machine="H100"), "painn_fused", "it is registered, and serves"),
        (dict(machine="CPU"), "painn_fused", "it is registered, and serves"),
        (dict(machine="H100", precision="float64"), "exact", "the reference"),
        (dict(machine="H100", num_channels=6), "exact", r"painn_fused +not used +its sizes must be powers of two"),
    ],
    ids=str,
)
def test_its_plan_needs_no_gpu(example, facts, engine, said):
    machine, precision = machine_named(facts.pop("machine")), facts.pop("precision", "float32")
    potential = potential_of(example, **facts)
    given = (potential.config, (), Workload.usual(9), precision, machine, Network.of(potential))
    found = plan(*given, registered=registered())
    assert found.engine == engine
    assert re.search(said, str(found))


def test_the_plan_of_a_tensornet_says_why_it_is_not_used(example, trained, ethanol):
    text = CapturedStep(trained("cpu"), System.from_ase(ethanol)).report().plan
    assert "its network must be a PaiNN, got TensorNet" in text


@pytest.mark.nightly
@needs_kernels
def test_it_keeps_the_contract(example):
    found = check_engine(example.make, potential_of(example, DEVICE))
    assert found.passed, str(found)


@needs_kernels
def test_its_kernel_is_the_readable_operation(example, crystal):
    potential = potential_of(example, DEVICE)
    batch = torchmdx.Batch.of(System.from_ase(crystal)).to(DEVICE, torch.float32)
    edges = brute_force(batch, 4.5)
    vectors = edges.vectors(batch.positions, batch.cell, batch.system_index)
    made = torch.Generator().manual_seed(0)
    sent, v = (torch.randn(batch.num_atoms, 3, 4, generator=made).to(DEVICE) for _ in range(2))
    filters = potential.network.filters[0].detach()
    found = example.FusedMessages.apply(edges, vectors, sent, v, filters, 4.0)
    wanted = example.messages(edges, *(x.double() for x in (vectors, sent, v, filters)), 4.0)
    assert float((found - wanted).abs().max()) < 1e-5 * float(wanted.abs().max())
