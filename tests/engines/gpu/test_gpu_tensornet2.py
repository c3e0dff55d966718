"""TensorNet2's kernels against the exact model in float64."""

from dataclasses import replace

import pytest
import torch
from charged_buffers import replanned, require_equal_bits
from interpreter import DEVICE, INTERPRETED, needs_kernels
from test_gpu_tensornet import CUTS, batch_of, run, virial_of

from torchmdx import System
from torchmdx.engines.gpu import charge_buffers
from torchmdx.engines.gpu.tensornet import FastTensorNet
from torchmdx.engines.gpu.tensornet2 import FastTensorNet2
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.structures.system import Batch


def evaluated(potential, batch, **options):
    return run(potential, batch, fast=options.pop("fast", None) or FastTensorNet2(potential.to(DEVICE)), **options)


def assert_agrees(potential, batch, *, of_system=0, **options):
    found = evaluated(potential, batch, **options)
    exact = evaluate(potential.double(), batch, brute_force(batch, potential.cutoff))
    torch.testing.assert_close(found.energies, exact.energies, atol=1e-6, rtol=1e-7)
    torch.testing.assert_close(found.energy, exact.energy, atol=1e-6 * batch.num_atoms, rtol=1e-7)
    assert (found.forces - exact.forces).norm() < 4e-6 * exact.forces.norm()
    strain = virial_of(potential, batch, of_system)
    assert (found.virial[of_system] - strain).norm() < 3e-5 * strain.norm()


SETTINGS = {
    "one layer": dict(num_layers=1),
    "SO(3)": dict(num_layers=2, group="SO(3)", num_charges=5),
    "no layers": dict(num_layers=0),
    "gauss": dict(num_layers=2 if INTERPRETED else 3, num_channels=24, radial_basis="gauss", charge_slack=1e-3),
    "many charges": dict(num_layers=1, activation="sigmoid", num_charges=40, num_head_layers=1),
}


@pytest.mark.nightly_for("one layer", "SO(3)", "gauss", "many charges")
@needs_kernels
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_charged_molecules_of_a_batch_agree_with_the_exact_model(make_potential, settings, ethanol, cation, wire):
    potential = make_potential(model="tensornet2", **{"num_channels": 16, **settings})
    assert_agrees(potential, batch_of(ethanol, cation, wire), of_system=1)


@pytest.mark.nightly
@needs_kernels
def test_a_triclinic_crystal_agrees(make_potential, crystal):
    assert_agrees(make_potential(model="tensornet2", num_channels=16, num_layers=1, cutoff=3.2), batch_of(crystal))


@pytest.mark.nightly_for("coarser")
@needs_kernels
@pytest.mark.parametrize("cut", ["coarser"] if INTERPRETED else ["fine", "coarse", "coarser"])
def test_all_ways_of_cutting_the_work_agree(make_potential, cut, ethanol, cation):
    potential = make_potential(model="tensornet2", num_channels=32, num_layers=1)
    assert_agrees(potential, batch_of(ethanol, cation), of_system=1, tiles=CUTS[cut])


@pytest.mark.nightly
@needs_kernels
def test_sums_over_parts_of_systems_are_the_same(make_potential, ethanol, cation, wire, monkeypatch):
    potential = make_potential(model="tensornet2", num_channels=16, num_layers=1)
    whole = [evaluated(potential, batch).forces.clone() for batch in (batch_of(ethanol, wire), batch_of(cation))]
    monkeypatch.setattr(charge_buffers, "FEWEST_TO_DIVIDE", 1)
    monkeypatch.setattr(charge_buffers, "PART", 2)
    monkeypatch.setattr("torchmdx.engines.gpu.charged.FEWEST_AT_ONCE", 1)
    for batch, forces in zip((batch_of(ethanol, wire), batch_of(cation)), whole, strict=True):
        found = evaluated(potential.float(), batch)
        assert found.scratch.charged.parts_sums.shape[1] > 1
        torch.testing.assert_close(found.forces, forces, atol=1e-6, rtol=1e-6)


@pytest.mark.nightly
@needs_kernels
def test_the_energy_alone_is_the_same_and_needs_fewer_buffers(make_potential, cation):
    potential = make_potential(model="tensornet2", num_channels=16, num_layers=3)
    fast = FastTensorNet2(potential.to(DEVICE))
    full = evaluated(potential, batch_of(cation), fast=fast)
    energy, num_bytes = full.energy.clone(), full.num_bytes
    alone = evaluated(potential, batch_of(cation), fast=fast, forces=False)
    torch.testing.assert_close(alone.energy, energy, rtol=1e-6, atol=0)
    assert alone.num_bytes < num_bytes


@pytest.mark.nightly
@needs_kernels
def test_equal_input_gives_equal_bits_and_poisoned_buffers_do_not_show(make_potential, cation):
    potential = make_potential(model="tensornet2", num_channels=16, num_layers=2)
    fast, batch = FastTensorNet2(potential.to(DEVICE)), batch_of(cation)
    first = evaluated(potential, batch, fast=fast, radius=potential.cutoff + 0.5)
    require_equal_bits(fast, first, batch, potential.cutoff + 0.5)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA GPU")
@pytest.mark.parametrize("num_channels", [64, 128])
@pytest.mark.parametrize("side", [2, 7], ids=["few", "many"])
def test_a_captured_graph_repeats_the_run_and_agrees_at_real_size(make_potential, num_channels, side):
    generator = torch.Generator().manual_seed(0)
    grid = torch.cartesian_prod(*[torch.arange(2.0 * side)] * 3) * 2.1
    positions = grid + 0.25 * torch.rand(grid.shape, generator=generator)
    numbers = torch.randint(1, 9, (len(grid),), generator=generator)
    system = System.create(positions.double(), numbers, 4.2 * side * torch.eye(3), True)
    batch = Batch.from_systems([system]).to(DEVICE, torch.float32).to(DEVICE, torch.float64)
    settings = dict(num_channels=num_channels, num_layers=1, num_radial=32, num_charges=16, cutoff=5.0)
    potential = make_potential(model="tensornet2", **settings).to(DEVICE)
    fast, tiles = FastTensorNet2(potential), None
    if num_channels == 64:
        tiles = replace(fast.choose_tiles(batch.num_atoms), row=None)
        replanned(fast, keeps_slopes=False, piece=4096)
    eager = run(potential, batch, fast=fast, tiles=tiles)
    forces, energy = eager.forces.clone(), eager.energy.clone()
    edges = brute_force(batch, potential.cutoff, capacity=eager.sizes.capacity)
    single = batch.to(DEVICE, torch.float32)
    inputs = (single.positions, single.atomic_numbers, single.system_index, single.cell, single.charge, edges)
    fast.run(*inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fast.run(*inputs)
    for _ in range(3):
        eager.forces.zero_()
        graph.replay()
        assert torch.equal(eager.forces, forces)
        assert torch.equal(eager.energy, energy)
    exact = evaluate(potential.double(), batch, brute_force(batch, potential.cutoff))
    assert (forces - exact.forces).norm() < 4e-6 * exact.forces.norm()
    torch.testing.assert_close(eager.energies, exact.energies, atol=2e-6, rtol=1e-7)


def test_each_network_has_its_own_kernels(make_potential):
    pytest.importorskip("triton")
    one, two = make_potential(), make_potential(model="tensornet2")
    assert FastTensorNet2.why_not(two) is None
    assert FastTensorNet2.why_not(one) == "its network must be a TensorNet2, got TensorNet"
    assert FastTensorNet.why_not(two) == "its network must be a TensorNet, got TensorNet2"


def test_the_table_holds_what_the_distance_does_to_the_first_map(make_potential):
    pytest.importorskip("triton")
    potential = make_potential(model="tensornet2", num_layers=2).requires_grad_(False)
    network = potential.network
    table = FastTensorNet2(potential, bound=1e-7).table.to(torch.float64)
    distance = torch.linspace(0.7, 3.9, 31, dtype=torch.float64)
    for layer, found in zip(network.layers, table(distance)[1:], strict=True):
        first = layer.filters[0]
        wanted = network.basis(distance) @ first.weight[:, : network.config.num_radial].T + first.bias
        torch.testing.assert_close(found[:, 0], wanted, atol=1e-6, rtol=1e-6)
        assert (found[:, 1:] == 0).all()
