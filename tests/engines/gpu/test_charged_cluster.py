"""TensorNet2's kernels of few atoms by clusters of blocks: emulated on the CPU, and on a GPU."""

import copy
import ctypes

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from emulated import compiled
from interpreter import DEVICE, INTERPRETED, needs_kernels
from test_gpu_tensornet import batch_of, run, virial_of
from uncertain import uncertain

from torchmdx import Batch, CapturedStep, Potential, System, TensorNet2Config
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.neighbors.brute_force import brute_force

pytest.importorskip("triton")

from torchmdx.engines.gpu import charged_cluster, one_launch_weights
from torchmdx.engines.gpu.charged_cluster import CALLED, ChargedClusters
from torchmdx.engines.gpu.tensornet2 import FastTensorNet2
from torchmdx.engines.plan import few_atoms, machine_named
from torchmdx.engines.plan.clusters import AtomClusters
from torchmdx.engines.plan.launch_sizes import Tiles

only_interpreted = pytest.mark.skipif(not INTERPRETED, reason="the GPU has the kernels themselves")
on_hopper = pytest.mark.skipif(
    DEVICE == "cpu" or torch.cuda.get_device_capability() != (9, 0), reason="needs an H100 or H200"
)


def made(priors=(), **settings):
    """The usual network, with weights that leave no term out."""
    torch.manual_seed(0)
    potential = Potential(TensorNet2Config(**{"num_layers": 1, **settings}), priors).requires_grad_(False)
    for module in potential.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.weight += 0.3 * torch.randn_like(module.weight)
            module.bias += 0.3 * torch.randn_like(module.bias)
    for layer in potential.network.layers:
        layer.filters[4].weight *= 4
    potential.scale.fill_(1.3)
    potential.shift.fill_(0.7)
    potential.reference_energies += torch.randn_like(potential.reference_energies)
    return potential


@pytest.fixture(scope="module")
def potential():
    return made()


@pytest.fixture(scope="module")
def fast(potential):
    return FastTensorNet2(potential.to(DEVICE))


@pytest.fixture(scope="module")
def charged():
    atoms = molecule("CH3CH2OH")
    atoms.rattle(0.05, seed=2)
    atoms.info["charge"] = 1
    return batch_of(atoms)


class Emulated:
    """Runs one of the kernels on one core, as `ClusterKernel` does on a GPU."""

    def __init__(self, library, which):
        self.library, self.which = library, which

    def launch(self, clusters, shared_bytes, given):
        self.library.launch(ctypes.byref(given), self.which, clusters, shared_bytes)


def emulated(fast, library, plan, num_atoms, slots):
    kernels = {name: Emulated(library, k) for k, name in enumerate(CALLED)}
    return ChargedClusters(fast, kernels, plan, num_atoms, slots)


def run_with(fast, potential, batch, library, plan, monkeypatch, **options):
    """The buffers after a run with the emulated kernels."""
    allocate = FastTensorNet2.allocate

    def allocated(model, num_atoms, num_systems, capacity, **settings):
        buffers = allocate(model, num_atoms, num_systems, capacity, **settings)
        model.clusters = emulated(model, library, plan, num_atoms, buffers.sizes.slots)
        return buffers

    monkeypatch.setattr(FastTensorNet2, "allocate", allocated)
    return run(potential, batch, fast=fast, **options)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder, constants = tmp_path_factory.mktemp("clusters"), AtomClusters(2, 1, 8, 2, True).constants
    return compiled(folder, "charged_cluster", **constants)


@needs_kernels
@only_interpreted
def test_python_and_the_kernels_agree_on_sizes(library, fast):
    fast.allocate(9, 1, 10)
    own = fast.row_weights.charges[0]
    weights = charged_cluster.pack_matrices(fast, 0)[0].numel() // one_launch_weights.THREADS
    vectors = charged_cluster.pack_vectors(fast.charged.equilibrations[0], own.first).shape[1]
    structures = (charged_cluster.OneLaunchStruct, charged_cluster.Charged, charged_cluster.GivenStruct)
    wanted = [weights, vectors, one_launch_weights.pack_vectors(fast.weights, usual=True).shape[1]]
    wanted += [ctypes.sizeof(structure) for structure in structures]
    wanted.append(emulated(fast, library, AtomClusters(2, 5, 8, 2, True), 9, 0).shared_bytes // 4)
    assert [library.constant(k) for k in range(7)] == wanted


@needs_kernels
@only_interpreted
def test_the_emulated_kernels_agree_with_the_exact_model(library, fast, potential, charged, monkeypatch):
    plan = AtomClusters(2, 5, 8, 2, True)  # the last cluster has one atom
    found = run_with(fast, potential, charged, library, plan, monkeypatch, radius=potential.cutoff + 0.5)
    exact = evaluate(copy.deepcopy(potential).double(), charged, brute_force(charged, potential.cutoff))
    torch.testing.assert_close(found.energies, exact.energies, atol=1e-6, rtol=1e-7)
    assert (found.forces - exact.forces).norm() <= 3e-6 * exact.forces.norm()
    strain = virial_of(copy.deepcopy(potential).double(), charged, 0)
    assert (found.virial[0] - strain).norm() < 3e-5 * strain.norm()


@pytest.mark.nightly  # a quarter of a minute
@needs_kernels
@only_interpreted
def test_several_layers_and_a_longer_head_agree_too(library, charged, monkeypatch):
    potential = uncertain(made(num_layers=2, num_head_layers=2))
    fast, plan = FastTensorNet2(potential), AtomClusters(2, 5, 8, 2, True)
    found = run_with(fast, potential, charged, library, plan, monkeypatch)
    exact = evaluate(copy.deepcopy(potential).double(), charged, brute_force(charged, potential.cutoff))
    torch.testing.assert_close(found.energies, exact.energies, atol=1e-6, rtol=1e-7)
    assert (found.forces - exact.forces).norm() <= 3e-6 * exact.forces.norm()
    torch.testing.assert_close(found.last_inputs.double(), exact.last_inputs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.uncertainties[1], exact.energies_uncertainty, rtol=2e-5, atol=0)


@pytest.mark.nightly  # a quarter of a minute
@needs_kernels
@only_interpreted
def test_the_order_in_which_threads_run_changes_nothing(library, fast, potential, charged, monkeypatch):
    plan = AtomClusters(2, 5, 8, 2, True)
    wanted = run_with(fast, potential, charged, library, plan, monkeypatch).forces.clone()
    for seed in "12":
        monkeypatch.setenv("EMULATED_ORDER", seed)
        assert torch.equal(run_with(fast, potential, charged, library, plan, monkeypatch).forces, wanted)


@pytest.mark.nightly  # a quarter of a minute
@needs_kernels
@only_interpreted
@pytest.mark.parametrize("layers", [1, 2])
def test_what_pulls_on_charges_gives_the_same_forces_with_the_kernels(library, charged, layers):
    potential = made(num_layers=layers)
    fast, edges = FastTensorNet2(potential, priors=True), brute_force(charged, potential.cutoff)
    pull = torch.randn(charged.num_atoms, 16 * (layers + 1), generator=torch.Generator().manual_seed(5))
    single = charged.to(DEVICE, torch.float32)
    inputs = (single.positions, single.atomic_numbers, single.system_index, single.cell, single.charge, edges)
    found = []
    for clusters in (False, True):
        tiles = Tiles.choose(charged.num_atoms)
        buffers = fast.allocate(charged.num_atoms, 1, edges.capacity, tiles=tiles)
        if clusters:
            plan = AtomClusters(2, 5, 8, 2, True)
            fast.clusters = emulated(fast, library, plan, charged.num_atoms, buffers.sizes.slots)
        fast.run(*inputs, between=lambda chain: chain.take_pull(pull))
        found.append(buffers.forces.clone())
    assert (found[1] - found[0]).norm() <= 2e-6 * layers * found[0].norm()


@pytest.mark.nightly_for("settings1", "settings2", "settings3")
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (dict(num_channels=64), "they need layers of 128 channels, got 1 of 64"),
        (dict(num_head_layers=7), "they need at most 7 hidden layers of the head, got 8"),
        (dict(num_charges=8), "they need 16 charges, got 8"),
        (dict(activation="tanh"), r"they need the activation silu and the group O\(3\), got tanh and O\(3\)"),
        (dict(group="SO(3)"), r"they need the activation silu and the group O\(3\), got silu and SO\(3\)"),
    ],
)
def test_other_networks_are_refused(settings, reason):
    model = FastTensorNet2(made(**settings), bound=1.0)
    model.machine = machine_named("H100")
    model.allocate(9, 1, 10)
    with pytest.raises(ValueError, match=reason):
        model.use_clusters()


def test_buffers_of_other_kernels_are_refused():
    model = FastTensorNet2(made(), bound=1.0)
    model.machine = machine_named("H100")
    with pytest.raises(RuntimeError, match="allocate must be called before use_clusters"):
        model.use_clusters()
    model.allocate(9, 2, 10)
    with pytest.raises(ValueError, match="need buffers of few atoms with forces"):
        model.use_clusters()
    model.allocate(90, 1, 10)
    with pytest.raises(ValueError, match="serve few atoms, got 90 with 10 edges"):
        model.use_clusters()


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("num_atoms", [9, 22, 60])
def test_two_layers_with_coulomb_energies_and_a_longer_head_agree(monkeypatch, num_atoms):
    monkeypatch.setattr(few_atoms, "MOST_CHARGED", 0)  # else few of them take one launch
    potential = made(num_layers=2, num_head_layers=1, priors=[CoulombConfig()]).to("cuda")
    generator = torch.Generator().manual_seed(num_atoms)
    grid = torch.cartesian_prod(*[torch.arange(4.0)] * 3)[:num_atoms] * 1.7
    positions = grid + 0.25 * torch.rand(grid.shape, generator=generator)
    numbers = torch.randint(1, 9, (num_atoms,), generator=generator)
    system = System.create(positions.double(), numbers, charge=1)
    step = CapturedStep(potential, system, mode="graph")
    results = [step(positions.double().numpy()) for _ in range(3)]
    assert step.engine.model.clusters is not None
    exact = evaluate(copy.deepcopy(potential).double(), Batch.of([system]).to("cuda"))
    forces = exact.forces.cpu().numpy()
    assert np.linalg.norm(results[0].forces - forces) <= 3e-6 * np.linalg.norm(forces)
    np.testing.assert_allclose(results[0].energy, exact.energy.cpu().numpy(), atol=2e-6 * num_atoms)
    np.testing.assert_array_equal(results[1].forces, results[2].forces)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("num_atoms", [9, 22, 45, 60])
def test_a_captured_graph_repeats_the_run_and_agrees(potential, fast, num_atoms):
    generator = torch.Generator().manual_seed(num_atoms)
    grid = torch.cartesian_prod(*[torch.arange(4.0)] * 3)[:num_atoms] * 1.7
    positions = grid + 0.25 * torch.rand(grid.shape, generator=generator)
    numbers = torch.randint(1, 9, (num_atoms,), generator=generator)
    atoms = Atoms(numbers.numpy(), positions.numpy())
    atoms.info["charge"] = -1
    batch = batch_of(atoms)
    edges = brute_force(batch, potential.cutoff)
    buffers = fast.allocate(num_atoms, 1, edges.capacity)
    fast.use_clusters()
    single = batch.to(DEVICE, torch.float32)
    inputs = (single.positions, single.atomic_numbers, single.system_index, single.cell, single.charge, edges)
    fast.run(*inputs)
    torch.cuda.synchronize()
    forces, energy = buffers.forces.clone(), buffers.energy.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fast.run(*inputs)
    for _ in range(3):
        buffers.forces.zero_()
        graph.replay()
        assert torch.equal(buffers.forces, forces)
        assert torch.equal(buffers.energy, energy)
    exact = evaluate(copy.deepcopy(potential).double(), batch, edges)
    assert (forces - exact.forces).norm() <= 3e-6 * exact.forces.norm()
    torch.testing.assert_close(buffers.energies, exact.energies, atol=2e-6, rtol=1e-7)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("stress", [False, True])
def test_a_step_takes_them_also_where_the_list_grows(monkeypatch, crystal, stress):
    monkeypatch.setattr(few_atoms, "MOST_CHARGED", 0)
    potential = made().to("cuda")
    exact = copy.deepcopy(potential).double()
    step = CapturedStep(potential, System.from_ase(crystal), mode="graph", stress=stress)
    for scale in (1.0, 0.8):  # the list grows
        atoms = crystal.copy()
        atoms.set_cell(scale * atoms.cell, scale_atoms=True)
        for _ in range(3):
            result = step(atoms.positions, atoms.cell.array)
        assert step.engine.model.clusters is not None
        wanted = evaluate(exact, Batch.of([System.from_ase(atoms)]).to("cuda"), stress=stress)
        forces = wanted.forces.cpu().numpy()
        assert np.linalg.norm(result.forces - forces) <= 4e-6 * np.linalg.norm(forces)
        if stress:
            np.testing.assert_allclose(result.stress, wanted.stress.cpu(), atol=3e-5 * float(wanted.stress.abs().max()))
    assert step.num_recoveries > 0
