"""TensorNet2's kernels with one program per atom, against the exact model in float64 and the other kernels."""

import copy

import pytest
import torch
from charged_buffers import require_equal_bits
from interpreter import DEVICE, needs_kernels
from model_kinds import kinds
from test_gpu_tensornet import CUTS, batch_of, run, virial_of

from torchmdx import System
from torchmdx.engines.gpu.engine import kernels_for
from torchmdx.engines.gpu.tensornet2 import FastTensorNet2
from torchmdx.engines.gpu.with_priors import GpuPriorEngine
from torchmdx.engines.plan import Workload
from torchmdx.engines.plan.kernels import MOST_ROWS
from torchmdx.engines.plan.launch_sizes import FEW_CHARGED, Tiles
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.structures.system import Batch


def evaluated(potential, batch, *, fast=None, rows=True, **options):
    fast = fast or FastTensorNet2(potential.to(DEVICE))
    found = run(potential, batch, fast=fast, **options)
    assert found.sizes.one_program_per_atom == rows
    return found


def assert_agrees(potential, batch, **options):
    found = evaluated(potential, batch, **options)
    exact = evaluate(potential.double(), batch, brute_force(batch, potential.cutoff))
    torch.testing.assert_close(found.energies, exact.energies, atol=1e-6, rtol=1e-7)
    torch.testing.assert_close(found.energy, exact.energy, atol=1e-6 * batch.num_atoms, rtol=1e-7)
    assert (found.forces - exact.forces).norm() < 4e-6 * exact.forces.norm()
    strain = virial_of(potential, batch, 0)
    assert (found.virial[0] - strain).norm() < 3e-5 * strain.norm()


@pytest.fixture
def charged(ethanol):
    atoms = ethanol.copy()
    atoms.info["charge"] = 1
    return atoms


SETTINGS = [
    dict(num_layers=1, num_channels=32, num_charges=16),
    dict(num_layers=2, num_channels=16, group="SO(3)", num_charges=5, num_head_layers=2),
    dict(num_layers=2, num_channels=24, num_charges=8, radial_basis="gauss", charge_slack=1e-3, activation="tanh"),
]


@pytest.mark.nightly_for(*map(str, SETTINGS[1:]))
@needs_kernels
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_charged_molecule_agrees_with_the_exact_model(make_potential, settings, charged):
    assert_agrees(make_potential(model="tensornet2", **settings), batch_of(charged))


@needs_kernels
def test_a_triclinic_crystal_agrees(make_potential, crystal):
    settings = dict(num_channels=16, num_layers=1, num_charges=4, cutoff=3.2)
    assert_agrees(make_potential(model="tensornet2", **settings), batch_of(crystal))


@pytest.mark.nightly
@needs_kernels
def test_few_warps_agree(make_potential, charged):
    potential = make_potential(model="tensornet2", num_channels=16, num_layers=1, num_charges=4)
    assert_agrees(potential, batch_of(charged), tiles=CUTS["row of few warps"])


@pytest.mark.nightly_for("3")
@needs_kernels
@pytest.mark.parametrize("layers", [1, 3])
def test_the_energy_alone_is_the_same(make_potential, cation, layers):
    potential = make_potential(model="tensornet2", num_channels=16, num_layers=layers, num_charges=4)
    fast = FastTensorNet2(potential.to(DEVICE))
    energy = evaluated(potential, batch_of(cation), fast=fast).energy.clone()
    alone = evaluated(potential, batch_of(cation), fast=fast, forces=False)
    torch.testing.assert_close(alone.energy, energy, rtol=1e-6, atol=0)


@pytest.mark.nightly
@needs_kernels
def test_equal_input_gives_equal_bits_and_poisoned_buffers_do_not_show(make_potential, cation):
    potential = make_potential(model="tensornet2", num_channels=16, num_layers=2, num_charges=4)
    fast, batch = FastTensorNet2(potential.to(DEVICE)), batch_of(cation)
    first = evaluated(potential, batch, fast=fast, radius=potential.cutoff + 0.5)
    require_equal_bits(fast, first, batch, potential.cutoff + 0.5)


@needs_kernels
def test_a_single_atom_has_an_energy_and_no_force(make_potential):
    potential = make_potential(model="tensornet2", num_channels=16, num_layers=1, num_charges=4)
    batch = Batch.from_systems([System.create([[0.0, 0, 0]], [8])]).to(DEVICE)
    found = evaluated(potential, batch, virial=False)
    exact = evaluate(potential.to(DEVICE).double(), batch, brute_force(batch, potential.cutoff))
    torch.testing.assert_close(found.energy, exact.energy, atol=1e-6, rtol=1e-7)
    assert (found.forces == 0).all()


@pytest.mark.nightly_for("2")
@needs_kernels
@pytest.mark.parametrize("layers", [1, 2])
def test_what_pulls_on_charges_reaches_the_forces(make_potential, charged, layers):
    """An energy of all charges, from outside: against derivatives of the exact one."""
    settings = dict(num_channels=16, num_layers=layers, num_charges=3)
    potential = make_potential(model="tensornet2", **settings).to(DEVICE).requires_grad_(False)
    batch, count = batch_of(charged), 3 * (layers + 1)
    weights = torch.randn(batch.num_atoms, count, generator=torch.Generator().manual_seed(5)).to(DEVICE)
    edges, exact = brute_force(batch, potential.cutoff), copy.deepcopy(potential).double()

    def outputs(positions):
        vectors = edges.vectors(positions, batch.cell, batch.system_index)
        total, _, _ = exact.outputs(batch, edges, vectors, positions)
        _, channels = exact.features(batch, edges, vectors)
        return total.sum() + (channels * weights).sum(), channels

    positions = batch.positions.clone().requires_grad_()
    energy, channels = outputs(positions)
    (wanted,) = torch.autograd.grad(energy, positions)
    fast, tiles = FastTensorNet2(potential.float(), priors=True), Tiles.choose(batch.num_atoms)
    assert fast.allocate(batch.num_atoms, 1, edges.capacity, tiles=tiles).sizes.one_program_per_atom
    single = batch.to(DEVICE, torch.float32)

    def pull(chain):
        torch.testing.assert_close(chain.channels().double(), channels.detach(), atol=1e-5, rtol=1e-5)
        chain.take_pull(weights)

    inputs = (single.positions, single.atomic_numbers, single.system_index, single.cell, single.charge, edges)
    found = fast.run(*inputs, between=pull)
    assert (found.forces + wanted).norm() < 1e-5 * wanted.norm()
    fast.allocate(batch.num_atoms, 1, edges.capacity, forces=False, tiles=tiles)
    fast.run(*inputs, forces=False, between=pull)


@needs_kernels
@pytest.mark.parametrize("kind", kinds("coulomb"))
def test_coulomb_energies_stand_beside_them(make_kind, kind, charged):
    single = copy.deepcopy(make_kind(kind, torch.float32)).to(DEVICE)
    batch = batch_of(charged)
    exact = evaluate(make_kind(kind).to(DEVICE), batch)
    model = kernels_for(single)(single, priors=True)
    planned = model.planned
    model.planned = lambda work: planned(work, Tiles.choose(work.atoms))
    engine = GpuPriorEngine(model, single, batch.to(DEVICE, torch.float32), stress=False)
    edges = brute_force(batch, single.search_cutoff(batch))
    engine.reserve(edges.capacity)
    found = engine.run(batch.positions.float(), batch.cell.float(), edges)
    assert model.buffers.sizes.one_program_per_atom
    torch.testing.assert_close(found.energy, exact.energy, atol=1e-4, rtol=1e-6)
    assert (found.forces - exact.forces).norm() < 1e-5 * exact.forces.norm()


def test_other_kernels_are_taken_where_these_do_not_serve(make_potential):
    pytest.importorskip("triton")
    potential = make_potential(model="tensornet2", num_channels=32, num_layers=1, num_charges=16)
    fast = FastTensorNet2(potential, bound=1e-2)
    assert fast.allocate(9, 1, 10).sizes.one_program_per_atom
    assert fast.allocate(FEW_CHARGED, 1, 10).sizes.one_program_per_atom
    assert not fast.allocate(FEW_CHARGED + 1, 1, 10).sizes.one_program_per_atom
    assert not fast.allocate(9, 2, 10).sizes.one_program_per_atom
    wide = make_potential(model="tensornet2", num_channels=16, num_layers=1, num_charges=16)
    assert not FastTensorNet2(wide, bound=1e-2).allocate(9, 1, 10).sizes.one_program_per_atom


def test_more_edges_than_values_are_kept_of_take_the_other_kernels(make_potential):
    pytest.importorskip("triton")
    fast = FastTensorNet2(make_potential(torch.float32, model="tensornet2", num_channels=16, num_charges=5))
    plans = [fast.planned(Workload(atoms=9, capacity=MOST_ROWS - 9 + more)) for more in (0, 1)]
    assert [plan.chain for plan in plans] == ["rows", "blocks"]
