"""One launch of a TensorNet2 with Coulomb energies: emulated on the CPU, and on a GPU."""

import copy
import ctypes
import types

import numpy as np
import pytest
import torch
from emulated import compiled
from interpreter import DEVICE, needs_kernels
from test_charged_cluster import charged, made, on_hopper, only_interpreted
from uncertain import uncertain

from torchmdx import Batch, CapturedStep, System
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.neighbors.brute_force import brute_force

pytest.importorskip("triton")

from torchmdx.engines.gpu import charged_launch
from torchmdx.engines.gpu.charged_launch import ChargedLaunch, LaunchStruct
from torchmdx.engines.gpu.tensornet2 import FastTensorNet2
from torchmdx.engines.gpu.with_priors import GpuPriorEngine
from torchmdx.engines.plan import few_atoms, machine_named
from torchmdx.engines.plan.clusters import AtomClusters
from torchmdx.engines.plan.launch_sizes import Tiles
from torchmdx.step.change import gave_up

__all__ = ["charged"]  # a fixture
PLAN = AtomClusters(2, 5, 8, 2, True)  # the last cluster has one of nine atoms


ORDERS = (("EMULATED_ORDER", "1"), ("EMULATED_AHEAD", "8,8"), ("EMULATED_AHEAD", "4,39"))  # of the emulated blocks


class Emulated:
    """Runs the kernel on one core, as `ClusterKernel` does on a GPU."""

    def __init__(self, library):
        self.library = library

    def most_clusters(self, shared_bytes):
        return 15

    def launch(self, clusters, shared_bytes, given):
        self.library.launch(ctypes.byref(given), clusters, shared_bytes)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("launch"), "charged_launch", **PLAN.constants)


def engine_for(potential, batch, library, monkeypatch):
    """An engine for an H100 whose kernel is emulated."""
    monkeypatch.setattr(few_atoms, "MOST_CHARGED", 60)
    monkeypatch.setattr(
        ChargedLaunch,
        "made_for",
        lambda model, buffers, coulomb: ChargedLaunch(model, buffers, PLAN, Emulated(library), coulomb),
    )
    fast = FastTensorNet2(potential, priors=True)
    fast.machine = machine_named("H100")
    engine = GpuPriorEngine(fast, potential, batch, stress=False)
    engine.alone = True
    return engine


@pytest.mark.nightly  # half a minute with the compilation
@needs_kernels
@only_interpreted
def test_python_and_the_kernel_agree_on_sizes(library):
    fast = FastTensorNet2(made())
    fast.allocate(9, 1, 10, tiles=Tiles.choose(9))
    maps, vectors, _ = charged_launch.pack_maps(fast, 0)
    wanted = [maps.shape[1], vectors.shape[1], *charged_launch.ROOMS, charged_launch.STAGES, charged_launch.SCRATCH]
    wanted += [charged_launch.MOST_LAYERS, ctypes.sizeof(LaunchStruct)]
    assert [library.constant(k) for k in range(8)] == wanted


@pytest.mark.nightly
@needs_kernels
@only_interpreted
def test_an_ion_with_coulomb_energies_agrees_with_the_exact_model(library, charged, monkeypatch):
    potential = uncertain(made([CoulombConfig()], num_head_layers=1))
    engine = engine_for(potential, charged, library, monkeypatch)
    edges = brute_force(charged, potential.cutoff + 0.5)  # some edges are beyond the cutoff
    engine.reserve(edges.capacity)
    assert engine.model.single is not None
    engine.model.single.numbers["rows"] = 8  # several pieces
    single = charged.to(DEVICE, torch.float32)
    found = engine.run(single.positions, single.cell, edges)
    exact = evaluate(copy.deepcopy(potential).double(), charged, edges)
    torch.testing.assert_close(found.energies, exact.energies, atol=1e-6, rtol=1e-7)
    torch.testing.assert_close(found.energy, exact.energy, atol=1e-6, rtol=1e-7)
    assert (found.forces - exact.forces).norm() <= 3e-6 * exact.forces.norm()
    torch.testing.assert_close(found.last_inputs.double(), exact.last_inputs, rtol=1e-5, atol=1e-5)
    for value, wanted in zip(found.uncertainties, (exact.energy_uncertainty, exact.energies_uncertainty), strict=True):
        torch.testing.assert_close(value, wanted, rtol=2e-5, atol=0)
    count = potential.config.num_charges
    _, charges = copy.deepcopy(potential).double().features(charged, edges, edges.vectors(*places(charged)))
    own = engine.model.buffers.scratch.charged.proposed
    assert own.shape == (2, 9, 2 * count)
    wanted = equilibrated(own.double(), charged)
    torch.testing.assert_close(wanted, charges.unflatten(1, (2, count)).transpose(0, 1), atol=2e-6, rtol=0)


def places(batch):
    return batch.positions, batch.cell, batch.system_index


def equilibrated(proposed, batch):
    """Charges [layers,N,K] from what the kernel's network has proposed, by the formula of ChargeEquilibration."""
    p, f = proposed.chunk(2, dim=-1)
    shares = f**2 / (f**2).sum(1, keepdim=True)
    return p + shares * (batch.charge - p.sum(1, keepdim=True))


@pytest.mark.nightly  # a minute
@needs_kernels
@only_interpreted
@pytest.mark.parametrize("coulomb", [True, False])
def test_two_layers_agree_in_any_order_of_threads_and_again(library, charged, monkeypatch, coulomb):
    potential = made([CoulombConfig(switch=(2.0, 4.0))] if coulomb else (), num_layers=2, num_head_layers=2)
    fast, edges = FastTensorNet2(potential, priors=coulomb), brute_force(charged, potential.cutoff)
    buffers = fast.allocate(9, 1, edges.capacity, tiles=Tiles.choose(9))
    engine = GpuPriorEngine(fast, potential, charged, stress=False) if coulomb else None
    fast.charged_launch = ChargedLaunch(fast, buffers, PLAN, Emulated(library), engine and fast.coulomb)
    single = charged.to(DEVICE, torch.float32)
    inputs = (single.positions, single.atomic_numbers, single.system_index, single.cell, single.charge, edges)
    found = fast.run(*inputs)
    exact = evaluate(copy.deepcopy(potential).double(), charged, edges)
    torch.testing.assert_close(found.energies, exact.energies, atol=1e-6, rtol=1e-7)
    assert (found.forces - exact.forces).norm() <= 3e-6 * exact.forces.norm()
    forces = found.forces.clone()
    for name, value in ORDERS if coulomb else ():
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            found.forces.zero_()
            assert torch.equal(fast.run(*inputs).forces, forces)
    assert not fast.charged_launch.gave_up()
    fast.charged_launch.memory["counters"][1] = 1  # as if blocks had waited in vain
    fast.run(*inputs)
    assert found.forces.isnan().all()
    assert found.energy.isnan().all()


@needs_kernels
def test_an_engine_takes_several_launches_after_one_gave_up(charged, monkeypatch):
    monkeypatch.setattr(FastTensorNet2, "use_clusters", lambda model: None)
    engine = engine_for(made([CoulombConfig()]), charged, None, monkeypatch)
    engine.reserve(80)
    assert engine.name == "kernels and priors, float32, one launch"
    assert not engine.gave_up()
    engine.model.single.memory["counters"][1] = 1
    step = types.SimpleNamespace(engine=engine)
    assert gave_up(step)
    engine.reserve(80)
    assert engine.name == "kernels and priors, float32"
    assert engine.model.single is None
    assert not gave_up(step)


@needs_kernels
def test_what_one_launch_cannot_do_is_refused_by_name(charged):
    model = FastTensorNet2(made([CoulombConfig()]), priors=True)
    model.machine = machine_named("H100")
    with pytest.raises(RuntimeError, match="allocate must be called before use_one_launch"):
        model.use_one_launch()
    buffers = model.allocate(9, 1, 80)
    with pytest.raises(ValueError, match="no virials, and no priors but one of Coulomb energies"):
        model.use_one_launch()
    with pytest.raises(ValueError, match="one launch needs forces of few atoms, got 90 with 80 edges"):
        ChargedLaunch.made_for(model, model.allocate(90, 1, 80), None)
    plan = AtomClusters(4, 15, 4, 4, True)
    with pytest.raises(ValueError, match="one launch has no room for 9 atoms in 15 clusters"):
        ChargedLaunch(model, buffers, AtomClusters(8, 15, 2, 4, True), Emulated(None), None)
    assert ChargedLaunch(model, buffers, plan, Emulated(None), None).shared_bytes <= 227 * 1024
    model.machine = machine_named("A100")
    with pytest.raises(ValueError, match="does not serve this network: they need a GPU of the architecture sm_90"):
        ChargedLaunch.made_for(model, buffers, None)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("num_atoms", [1, 9, 22, 30, 49])
def test_a_captured_step_takes_it_and_agrees(num_atoms, monkeypatch):
    monkeypatch.setattr(few_atoms, "MOST_CHARGED", 60)
    potential = made(num_layers=2, num_head_layers=1, priors=[CoulombConfig()]).to("cuda")
    generator = torch.Generator().manual_seed(num_atoms)
    grid = torch.cartesian_prod(*[torch.arange(4.0)] * 3)[:num_atoms] * 1.7
    positions = grid + 0.25 * torch.rand(grid.shape, generator=generator)
    numbers = torch.randint(1, 9, (num_atoms,), generator=generator)
    system = System.create(positions.double(), numbers, charge=1)
    step = CapturedStep(potential, system, mode="graph")
    results = [step(positions.double().numpy()) for _ in range(3)]
    assert step.engine.model.single is not None
    exact = evaluate(copy.deepcopy(potential).double(), Batch.of([system]).to("cuda"))
    forces = exact.forces.cpu().numpy()
    assert np.linalg.norm(results[0].forces - forces) <= 3e-6 * np.linalg.norm(forces) + 1e-9
    np.testing.assert_allclose(results[0].energy, exact.energy.cpu().numpy(), atol=2e-6 * num_atoms)
    np.testing.assert_array_equal(results[1].forces, results[2].forces)
