"""Networks other than the usual one in one launch, energies alone, and stress: emulated on the CPU."""

import copy

import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from emulated import Emulator
from test_gpu_tensornet import batch_of

from torchmdx import Potential, TensorNetConfig
from torchmdx.engines.gpu.one_launch import OneLaunch
from torchmdx.engines.gpu.tensornet import FastTensorNet
from torchmdx.engines.plan.clusters import AtomClusters, ClusterNetwork
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.neighbors.brute_force import brute_force

pytest.importorskip("triton")
pytestmark = pytest.mark.nightly  # a few seconds to compile each kernel, and a second for each launch

MATGL = dict(self_message=False, readout_activation=False, charge_factor=False, radial_basis="bessel", num_radial=3)
# Every pair of values of two options is in one of them.
NETWORKS = {
    "aceff 1.1": dict(num_layers=1),
    "matgl": dict(head="gated", num_head_layers=2, **MATGL),
    "no layer": dict(num_layers=0, num_channels=64, head="gated", activation="tanh"),
    "no layer, plain": dict(num_layers=0, num_head_layers=1, self_message=False, activation="mish"),
    "three": dict(num_layers=3, num_channels=32, activation="ssp", group="SO(3)", num_head_layers=2),
    "three, gated": dict(num_layers=3, num_channels=48, head="gated", num_head_layers=1, readout_activation=False),
    "turned": dict(num_layers=2, num_channels=96, group="SO(3)", activation="sigmoid", charge_factor=False),
    "one, narrow": dict(num_layers=1, num_channels=20, head="gated", group="SO(3)", messages="target"),
    "own tensors": dict(num_layers=2, num_channels=64, messages="target", head="gated", **MATGL),
}

# Each head, number of layers and way of messages: what the kernel waits for, and where energies are read.
EACH_HEAD = ("aceff 1.1", "no layer", "three", "own tensors")


def made(settings):
    """Weights of a network that leave no term out."""
    torch.manual_seed(0)
    potential = Potential(TensorNetConfig(**{"num_radial": 8, **settings})).requires_grad_(False)
    for norm in (potential.network.norm, potential.network.embedding.norm):
        norm.weight += 0.3 * torch.randn_like(norm.weight)
        norm.bias += 0.3 * torch.randn_like(norm.bias)
    potential.scale.fill_(1.3)
    potential.shift.fill_(0.7)
    potential.reference_energies += torch.randn_like(potential.reference_energies)
    return potential


def structures():
    """A charged molecule, an atom alone, and a crystal of two atoms with many images."""
    ethanol, salt = molecule("CH3CH2OH"), bulk("NaCl", "rocksalt", 5.64)
    ethanol.rattle(0.05, seed=2)
    salt.rattle(0.1, seed=1)
    ethanol.info["charge"] = 1
    return [ethanol, Atoms("O", positions=[[1, 2, 3]]), salt]


def launched(potential, emulator, batch, *, virials=False, forces=True, plan=None):
    fast = FastTensorNet(potential)
    edges = brute_force(batch, potential.cutoff)
    buffers = fast.allocate(batch.num_atoms, batch.num_systems, edges.capacity)
    for value in (buffers.energies, buffers.energy, buffers.forces, buffers.virial, buffers.stress):
        value.fill_(torch.nan)
    plan = plan or AtomClusters.choose(batch.num_atoms, 4, ClusterNetwork.of(potential.config))
    fast.one_launch = OneLaunch(fast, buffers, plan, emulator, virials=virials)
    inputs = (batch.positions, batch.atomic_numbers, batch.system_index, batch.cell, batch.charge, edges)
    return fast.run(*inputs, forces=forces, virial=virials and forces)


@pytest.fixture(scope="module", params=NETWORKS)
def case(request, tmp_path_factory):
    potential = made(NETWORKS[request.param])
    network = ClusterNetwork.of(potential.config)
    kernel = Emulator(tmp_path_factory.mktemp("network"), VIRIALS_TOO=1, **network.constants)
    return potential, kernel


@pytest.fixture(scope="module")
def whole(case):
    """Energies, forces and virials of `structures()`."""
    return launched(*case, batch_of(*structures()), virials=True)


def test_sizes_of_python_and_the_kernel_agree(case):
    potential, kernel = case
    network = ClusterNetwork.of(potential.config)
    assert [kernel.library.constant(k) for k in range(3)] == [network.room, network.kept, network.vectors]


def test_energies_forces_and_stress_are_those_of_the_exact_model(case, whole):
    potential, found, batch = case[0], whole, batch_of(*structures())
    exact = evaluate(copy.deepcopy(potential).double(), batch, brute_force(batch, potential.cutoff), stress=True)
    torch.testing.assert_close(found.energies, exact.energies, atol=1e-6, rtol=1e-7)
    torch.testing.assert_close(found.energy, exact.energy, atol=1e-6 * batch.num_atoms, rtol=1e-7)
    assert (found.forces - exact.forces).norm() <= 3e-6 * exact.forces.norm()
    periodic = batch.pbc.all(1)
    assert (found.stress - exact.stress)[periodic].norm() <= 3e-6 * exact.stress[periodic].norm()
    assert found.stress[~periodic].isnan().all()


@pytest.mark.parametrize("case", EACH_HEAD, indirect=True)
def test_energies_alone_are_the_same_bits(case, whole):
    found = launched(*case, batch_of(*structures()), virials=True, forces=False)
    assert torch.equal(found.energies, whole.energies)
    assert torch.equal(found.energy, whole.energy)
    assert found.forces.isnan().all()


@pytest.mark.parametrize("case", EACH_HEAD, indirect=True)
def test_the_order_in_which_threads_run_changes_nothing(case, monkeypatch):
    potential, kernel = case
    batch = batch_of(molecule("NH3"))
    plan = AtomClusters(2, 2, 3, 2, True, ClusterNetwork.of(potential.config))
    wanted = launched(potential, kernel, batch, virials=True, plan=plan)
    monkeypatch.setenv("EMULATED_ORDER", "1")
    found = launched(potential, kernel, batch, virials=True, plan=plan)
    assert torch.equal(found.energies, wanted.energies)
    assert torch.equal(found.forces, wanted.forces)
    assert torch.equal(found.virial, wanted.virial)
