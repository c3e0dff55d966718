"""The kernel that evaluates few atoms in one launch: emulated on the CPU, and on a GPU."""

import copy
import ctypes

import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from emulated import Emulator
from test_gpu_tensornet import batch_of

from torchmdx import Potential, TensorNetConfig
from torchmdx.engines.gpu import one_launch
from torchmdx.engines.gpu.one_launch import OneLaunch
from torchmdx.engines.gpu.tensornet import FastTensorNet
from torchmdx.engines.plan import clusters as plans
from torchmdx.engines.plan.clusters import AtomClusters
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.neighbors.brute_force import brute_force

pytest.importorskip("triton")

emulated = pytest.mark.nightly  # a few seconds to compile, and a second for each launch


@pytest.fixture(scope="module")
def potential():
    """Weights of the usual network that leave no term out."""
    torch.manual_seed(0)
    made = Potential(TensorNetConfig()).requires_grad_(False)
    for norm in (made.network.norm, made.network.embedding.norm):
        norm.weight += 0.3 * torch.randn_like(norm.weight)
        norm.bias += 0.3 * torch.randn_like(norm.bias)
    made.scale.fill_(1.3)
    made.shift.fill_(0.7)
    made.reference_energies += torch.randn_like(made.reference_energies)
    return made


@pytest.fixture(scope="module")
def fast(potential):
    return FastTensorNet(potential)


def systems(name):
    alone, far = Atoms("O", positions=[[1, 2, 3]]), Atoms("OH", positions=[[0, 0, 0], [0, 0, 40]])
    ethanol, methane = molecule("CH3CH2OH"), molecule("CH4")
    salt = bulk("NaCl", "rocksalt", 5.64)
    salt.rattle(0.1, seed=1)
    ethanol.rattle(0.05, seed=2)
    charged = ethanol.copy()
    charged.info["charge"] = 1
    chosen = dict(alone=[alone], apart=[far], ethanol=[ethanol], salt=[salt], several=[charged, alone, methane])
    return chosen[name]


def run(fast, kernel, batch, edges, plan):
    """The buffers after one launch."""
    buffers = fast.allocate(batch.num_atoms, batch.num_systems, edges.capacity)
    for value in (buffers.energies, buffers.energy, buffers.forces):
        value.fill_(torch.nan)
    single = OneLaunch(fast, buffers, plan, kernel)
    inputs = (batch.positions, batch.atomic_numbers, batch.system_index, batch.cell, batch.charge, edges)
    single.run(*inputs)
    assert single.memory["counters"].tolist() == [plan.clusters * one_launch.SHARES, single.gave_up(), 0]
    return buffers


@emulated
def test_python_and_the_kernel_agree_on_sizes(emulator, fast):
    sizes = [emulator.library.constant(k) for k in range(7)]
    vectors = one_launch.pack_vectors(fast.weights).shape[1]
    weights = one_launch.pack_matrices(fast.weights)[0].numel() // one_launch.THREADS
    wanted = [
        plans.USUAL.room,
        plans.USUAL.kept,
        vectors,
        weights,
        ctypes.sizeof(one_launch.OneLaunchStruct),
        32,
        plans.PARTICLE,
    ]
    assert sizes == wanted
    assert AtomClusters(1, 1, 1, 1, False).floats == plans.USUAL.room + 16 * plans.NINE + vectors + 12


@emulated
@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("alone", AtomClusters(1, 1, 8, 1, True)),
        ("apart", AtomClusters(2, 1, 8, 2, True)),
        ("ethanol", AtomClusters(3, 3, 2, 2, False)),
        ("salt", AtomClusters(2, 1, 3, 1, True)),
        ("several", AtomClusters(4, 4, 2, 4, True)),
    ],
)
def test_the_emulated_kernel_agrees_with_the_exact_model(emulator, potential, fast, name, plan):
    batch = batch_of(*systems(name))
    edges = brute_force(batch, potential.cutoff + 0.5, capacity=brute_force(batch, potential.cutoff + 0.5).capacity + 5)
    found = run(fast, emulator, batch, edges, plan)
    exact = evaluate(copy.deepcopy(potential).double(), batch, brute_force(batch, potential.cutoff))
    torch.testing.assert_close(found.energies, exact.energies, atol=1e-6, rtol=1e-7)
    torch.testing.assert_close(found.energy, exact.energy, atol=1e-6 * batch.num_atoms, rtol=1e-7)
    assert (found.forces - exact.forces).norm() <= 3e-6 * exact.forces.norm()


@emulated
@pytest.mark.parametrize(("gap", "refused"), [(0.99e-4, True), (1.01e-4, False)])
def test_atoms_that_coincide_have_no_energy(emulator, potential, fast, gap, refused):
    together, alone = systems("ethanol")[0], systems("ethanol")[0]
    together.positions[4] = 0
    together.positions[2] = [gap * 0.6, 0, gap * 0.8]
    batch = batch_of(together, alone)
    found = run(fast, emulator, batch, brute_force(batch, potential.cutoff), AtomClusters(6, 3, 2, 2, False))
    assert torch.isfinite(found.energies[[2, 4]]).any().item() != refused
    assert torch.isfinite(found.forces[[2, 4]]).all().item() != refused
    assert torch.isfinite(found.energies[9:]).all()
    assert torch.isfinite(found.forces[9:]).all()


@emulated
def test_a_kernel_compiled_for_a_plan_gives_the_same_bits(emulator, potential, fast, tmp_path):
    batch = batch_of(*systems("ethanol"))
    edges, plan = brute_force(batch, potential.cutoff), AtomClusters.choose(9, 4)
    assert plan == AtomClusters(3, 3, 5, 3, True)
    assert plan.constants == dict(ATOMS_PER_CLUSTER=3, LANES=5)
    wanted = run(fast, emulator, batch, edges, plan)
    special = Emulator(tmp_path, **plan.constants)
    found = run(fast, special, batch, edges, plan)
    assert torch.equal(found.energies, wanted.energies)
    assert torch.equal(found.forces, wanted.forces)
    batch, plan = batch_of(molecule("NH3")), AtomClusters(3, 2, 5, 3, True)  # the last cluster has one atom
    edges = brute_force(batch, potential.cutoff)
    assert torch.equal(run(fast, special, batch, edges, plan).forces, run(fast, emulator, batch, edges, plan).forces)


@emulated
def test_reading_what_atoms_tell_for_each_edge_gives_the_same_bits(emulator, potential, fast, monkeypatch):
    batch = batch_of(*systems("ethanol"))
    edges, plan = brute_force(batch, potential.cutoff), AtomClusters(3, 3, 2, 2, True)
    wanted = run(fast, emulator, batch, edges, plan)
    # As of more atoms, whose tensors have no room in a block.
    monkeypatch.setattr("torchmdx.engines.plan.clusters.MOST_IN_STEP", 0)
    found = run(fast, emulator, batch, edges, plan)
    assert torch.equal(found.energies, wanted.energies)
    assert torch.equal(found.forces, wanted.forces)


@emulated
def test_the_order_in_which_threads_run_changes_nothing(emulator, potential, fast, monkeypatch):
    batch = batch_of(*systems("ethanol"))
    edges, plan = brute_force(batch, potential.cutoff), AtomClusters(4, 3, 2, 2, True)
    wanted = run(fast, emulator, batch, edges, plan)
    monkeypatch.setenv("EMULATED_ORDER", "2")
    found = run(fast, emulator, batch, edges, plan)
    assert torch.equal(found.energies, wanted.energies)
    assert torch.equal(found.forces, wanted.forces)


@emulated
def test_a_position_that_is_not_a_number_reaches_the_energy(emulator, potential, fast):
    batch = batch_of(*systems("ethanol"))
    edges = brute_force(batch, potential.cutoff)
    batch.positions[3, 1] = torch.nan
    found = run(fast, emulator, batch, edges, AtomClusters(3, 3, 2, 2, True))
    assert found.energy.isnan().all()
    assert found.forces.isnan().any()


@emulated
def test_blocks_that_give_up_waiting_end_and_say_so(emulator, potential, fast, monkeypatch):
    batch = batch_of(*systems("ethanol"))
    edges, plan = brute_force(batch, potential.cutoff), AtomClusters(3, 3, 2, 2, True)
    wanted = run(fast, emulator, batch, edges, plan)
    monkeypatch.setattr(one_launch, "PATIENCE", 0)
    found = run(fast, emulator, batch, edges, plan)
    assert found.energy.isnan().all()
    assert found.energies.isnan().all()
    assert found.forces.isnan().all()
    monkeypatch.undo()
    assert torch.equal(run(fast, emulator, batch, edges, plan).forces, wanted.forces)


@pytest.mark.nightly_for("settings0", "settings1")
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (dict(num_layers=4), "it needs at most 3 layers of at most 128 channels, got 4 of 128"),
        (dict(num_channels=144), "it needs at most 3 layers of at most 128 channels, got 2 of 144"),
        (dict(num_head_layers=7), "it needs at most 7 hidden layers of the head, got 8"),
    ],
)
def test_a_larger_network_is_refused(settings, reason):
    fast = FastTensorNet(Potential(TensorNetConfig(num_radial=4, **settings)), bound=1e-2)
    with pytest.raises(RuntimeError, match="allocate must be called before use_one_launch"):
        fast.use_one_launch()
    fast.allocate(3, 1, 6)
    with pytest.raises(ValueError, match=f"one launch does not serve this network: {reason}"):
        fast.use_one_launch()
    assert fast.one_launch is None


def test_buffers_on_the_cpu_are_refused():
    fast = FastTensorNet(Potential(TensorNetConfig(num_radial=4)), bound=1e-2)
    fast.allocate(3, 1, 6)
    with pytest.raises(ValueError, match="one launch needs atoms on a GPU, got 3 on cpu"):
        fast.use_one_launch()


def on_hopper():
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == one_launch.CAPABILITY


needs_hopper = pytest.mark.skipif(not on_hopper(), reason=f"needs a GPU of the architecture {one_launch.ARCHITECTURE}")


def crowd(count):
    """Molecules side by side, one structure of `count` atoms or a few more."""
    atoms, step = Atoms(), 0
    while len(atoms) < count:
        one = molecule("CH3CH2OH")
        one.rattle(0.05, seed=step)
        one.translate([4.5 * (step % 4), 4.5 * (step // 4 % 4), 4.5 * (step // 16)])
        atoms, step = atoms + one, step + 1
    return atoms


def on_the_gpu(potential, structures):
    """A batch, and what evaluates it in one launch."""
    batch = batch_of(*structures).to("cuda")
    fast, edges = FastTensorNet(copy.deepcopy(potential).cuda()), brute_force(batch, potential.cutoff + 0.5)
    fast.allocate(batch.num_atoms, batch.num_systems, edges.capacity)
    fast.use_one_launch()
    inputs = (batch.positions, batch.atomic_numbers, batch.system_index, batch.cell, batch.charge, edges)
    return batch, lambda: fast.run(*inputs)


def captured(work):
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


@pytest.mark.gpu
@needs_hopper
@pytest.mark.parametrize("case", ["alone", "apart", "ethanol", "salt", "several", 22, 60, 130, 160])
def test_one_launch_agrees_with_the_exact_model_and_repeats_its_bits(potential, case):
    structures = [crowd(case)] if isinstance(case, int) else systems(case)
    batch, work = on_the_gpu(potential, structures)
    found = work()
    exact = evaluate(copy.deepcopy(potential).double().cuda(), batch, brute_force(batch, potential.cutoff))
    torch.testing.assert_close(found.energies, exact.energies, atol=2e-6, rtol=1e-7)
    torch.testing.assert_close(found.energy, exact.energy, atol=1e-6 * batch.num_atoms, rtol=1e-7)
    assert (found.forces - exact.forces).norm() <= 3e-6 * exact.forces.norm()
    first, graph = (found.energy.clone(), found.forces.clone()), captured(work)
    for _ in range(100):
        found.forces.fill_(torch.nan)
        graph.replay()
        assert torch.equal(found.energy, first[0])
        assert torch.equal(found.forces, first[1])
