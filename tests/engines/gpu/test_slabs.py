"""Structures evaluated in slabs, one after the other, against the exact model and against all atoms at once."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from ase import Atoms
from interpreter import DEVICE, needs_kernels
from test_gpu_tensornet import CUTS, batch_of
from uncertain import uncertain

from torchmdx import CapturedStep, Potential, System, TensorNetConfig, evaluate, load
from torchmdx.engines.gpu.engine import GpuEngine
from torchmdx.engines.gpu.slab_layout import SlabLayout
from torchmdx.engines.gpu.slab_windows import Lags, SlabShape
from torchmdx.engines.gpu.tensornet import FastTensorNet
from torchmdx.engines.plan import Workload, launch_sizes, machine_named, plan
from torchmdx.engines.plan.kernels import SLABS
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.step import captured_step
from torchmdx.step import slab_order as order_of_slabs
from torchmdx.step.results import OutOfDeviceMemory
from torchmdx.step.slab_order import slab_order


def cloud(count, pbc, seed=0, length=1.4):
    """Atoms in a row of a skewed cell, out of line."""
    random = np.random.default_rng(seed)
    positions = np.arange(count)[:, None] * [length, 0.1, 0] + random.uniform(-0.25, 0.25, (count, 3))
    cell = [[length * count, 0.1 * count, 0], [1.0, 7, 0], [0, 0.5, 8]]
    return Atoms(random.choice([1, 6, 8], count), positions + np.array([0.3, 2, 2]), cell=cell, pbc=pbc)


def potential_of(**settings):
    torch.manual_seed(0)
    given = dict(num_channels=16, num_radial=8, num_layers=2, cutoff=2.0) | settings
    return Potential(TensorNetConfig(**given)).requires_grad_(False)


def water_box(molecules):
    """Molecules on a grid, each turned at random, at the density of water."""
    random, side = np.random.default_rng(0), round(molecules ** (1 / 3))
    grid = np.stack(np.meshgrid(*[np.arange(side)] * 3, indexing="ij"), -1).reshape(-1, 3)
    turns = np.linalg.qr(random.normal(size=(molecules, 3, 3)))[0]
    shape = np.array([[0.0, 0, 0], [0.9572, 0, 0], [-0.24, 0.9266, 0]])
    atoms = (grid + 0.5)[:, None] * 3.105 + np.einsum("nij,kj->nki", turns, shape)
    return np.tile([8, 1, 1], molecules), atoms.reshape(-1, 3), np.eye(3) * side * 3.105


def in_slabs(fast, batch, rows, reach, *, virial=True, forces=True, tiles=CUTS["by elements"], poisoned=True):
    edges = brute_force(batch, fast.config.cutoff)
    work = Workload(atoms=batch.num_atoms, capacity=edges.capacity, elements=3)
    plan = replace(fast.planned(work, tiles), chain=SLABS)
    elements = batch.atomic_numbers.unique().tolist()
    shape = SlabShape(batch.num_atoms, rows, reach)
    buffers = fast.allocate(batch.num_atoms, 1, edges.capacity, elements=elements, plan=plan, slabs=shape)
    for tensor in [*buffers.scratch.tensors(), *buffers.windows.tensors()] if poisoned else ():
        tensor.fill_(torch.nan if tensor.is_floating_point() else -7)
    single = batch.to(DEVICE, torch.float32)
    inputs = (single.positions, single.atomic_numbers, single.system_index, single.cell, single.charge, edges)
    return fast.run(*inputs, virial=virial, forces=forces)


def ordered(batch, cutoff, rows, reach):
    given, layout = (batch.positions, batch.cell, batch.pbc), SlabLayout(reach, 0.0)
    slab_order(*given, layout, cutoff)  # chooses the axis
    layout.rows = rows
    order = slab_order(*given, layout, cutoff)
    return replace(batch, positions=batch.positions[order], atomic_numbers=batch.atomic_numbers[order])


def assert_agrees(potential, batch, found):
    exact = evaluate(potential.double(), batch, stress=True)
    assert not int(found.windows.far)
    torch.testing.assert_close(found.energies, exact.energies.to(DEVICE), atol=1e-5, rtol=1e-6)
    assert (found.forces - exact.forces.to(DEVICE)).norm() < 3e-6 * exact.forces.norm()
    assert (found.stress - exact.stress.to(DEVICE)).norm() < 1e-5 * exact.stress.norm()
    if potential.uncertainty is not None:
        torch.testing.assert_close(found.uncertainties[0].cpu(), exact.energy_uncertainty.cpu(), rtol=1e-4, atol=0)
        torch.testing.assert_close(found.uncertainties[1].cpu(), exact.energies_uncertainty.cpu(), rtol=1e-4, atol=0)


GATED = {"head": "gated", "num_head_layers": 1, "readout_activation": False, "num_layers": 1}
CASES = [
    ({}, 4, 1),
    ({"num_layers": 1}, 5, 1),
    ({"messages": "target"}, 3, 2),
    ({"num_layers": 3}, 3, 1),
    (GATED, 4, 1),
    ({"num_channels": 32}, 3, 2),  # sums by elements
]


@needs_kernels
@pytest.mark.nightly_for("{'messages': 'target'}-3-2", "{'num_layers': 3}-3-1", "{'num_channels': 32}-3-2")
@pytest.mark.parametrize(("settings", "rows", "reach"), CASES, ids=str)
def test_forces_are_those_of_the_exact_model(settings, rows, reach):
    potential = uncertain(potential_of(**settings))
    batch = ordered(batch_of(cloud(33, [True, False, True])), 2.0, rows, reach)
    fast = FastTensorNet(potential.to(DEVICE), bound=1e-6)
    found = in_slabs(fast, batch, rows, reach)
    assert (found.present is not None) == (settings.get("num_channels") == 32)
    assert len(found.windows.m[-1]) < batch.num_atoms
    assert_agrees(potential, batch, found)
    kept = found.energies.clone()
    assert torch.equal(in_slabs(fast, batch, rows, reach, forces=False).energies, kept)


@needs_kernels
@pytest.mark.nightly_for("33-100-1", "5-1-2")
@pytest.mark.parametrize(("count", "rows", "reach"), [(33, 100, 1), (5, 1, 2), (1, 64, 2)])
def test_few_slabs(count, rows, reach):
    """One slab of all atoms, slabs of single atoms that are fewer than a window has, and an atom without neighbours."""
    potential = potential_of(num_layers=1)
    batch = ordered(batch_of(cloud(count, [False, False, True])), 2.0, rows, reach)
    found = in_slabs(FastTensorNet(potential.to(DEVICE), bound=1e-6), batch, rows, reach)
    assert not int(found.windows.far)
    exact = evaluate(potential.double(), batch)
    torch.testing.assert_close(found.energies, exact.energies.to(DEVICE), atol=1e-5, rtol=1e-6)
    assert (found.forces - exact.forces.to(DEVICE)).abs().max() < 1e-5


@needs_kernels
@pytest.mark.nightly
def test_results_are_those_of_all_atoms_at_once():
    """To the bit, apart from mix(A), which is a product of the same numbers; so are two runs."""
    potential, rows, reach = potential_of(num_channels=32), 4, 1
    batch = ordered(batch_of(cloud(33, [True, False, True])), 2.0, rows, reach)
    fast = FastTensorNet(potential.to(DEVICE))
    found = in_slabs(fast, batch, rows, reach)
    first, again = found.forces.clone(), in_slabs(fast, batch, rows, reach, poisoned=False).forces
    assert torch.equal(first, again)
    edges = brute_force(batch, 2.0)
    fast.allocate(batch.num_atoms, 1, edges.capacity, tiles=CUTS["by elements"], elements=[1, 6, 8])
    single = batch.to(DEVICE, torch.float32)
    whole = fast.run(
        single.positions, single.atomic_numbers, single.system_index, single.cell, single.charge, edges, virial=True
    )
    assert (whole.forces - first).norm() < 1e-6 * first.norm()


@needs_kernels
def test_neighbours_too_many_slabs_apart_are_noticed():
    """In any other order than that of slabs: results are NaN, never wrong."""
    potential = potential_of(num_layers=1)
    batch = batch_of(cloud(33, [True, False, True]))
    batch = replace(batch, positions=batch.positions.roll(16, 0), atomic_numbers=batch.atomic_numbers.roll(16, 0))
    found = in_slabs(FastTensorNet(potential.to(DEVICE)), batch, 4, 1)
    assert int(found.windows.far) == 1
    assert found.energy.isnan().all()


@needs_kernels
def test_windows_have_room_for_what_lags_behind():
    lags = Lags(layers=2, reach=3)
    assert [lags.layer(0), lags.layer(1), lags.back(1), lags.back(0)] == [3, 6, 9, 12]
    shape = SlabShape(atoms=1000, rows=64, reach=3)
    assert shape.count == 16
    assert [shape.of(0), shape.of(15)] == [slice(0, 64), slice(960, 1000)]


@pytest.fixture(autouse=True)
def any_number_of_rows(monkeypatch):
    monkeypatch.setattr(order_of_slabs, "ROWS", 1)


@pytest.fixture
def small(monkeypatch):
    """Slabs for structures of few atoms."""
    monkeypatch.setattr(launch_sizes, "FEW_ATOMS", 0)

    def engine_for(potential, batch, *, stress, precision, **_):
        engine = GpuEngine(potential, batch, stress=stress)
        work = Workload(atoms=batch.num_atoms, memory=1)
        engine.plan = plan(potential.config, (), work, precision, machine_named("RTX 4090"))
        engine.model.memory = 1
        return engine, "a test"

    monkeypatch.setattr(captured_step, "engine_for", engine_for)


@needs_kernels
def test_a_step_orders_atoms_in_slabs_and_divides_them_anew(small):
    """The step works in its own order; exchanged atoms leave their slabs, and results are right all the same."""
    potential, atoms = potential_of(num_layers=1).to(DEVICE), cloud(41, [True, True, False])
    atoms.numbers[:] = 6
    step = CapturedStep(potential, System.from_ase(atoms), mode="eager", stress=True, energies=True)
    layout = step.engine.model.layout
    assert step.engine.plan.kernels.chain == SLABS
    assert (layout.axis, step.engine.model.buffers.windows.shape.rows) == (0, layout.rows)
    assert layout.rows < 20
    exchanged = atoms.positions[np.random.default_rng(0).permutation(len(atoms))]
    for positions in (atoms.positions, exchanged):
        found = step(positions)
        exact = evaluate(
            copy.deepcopy(potential).double(), System.create(positions, atoms.numbers, atoms.cell.array, atoms.pbc)
        )
        exact_forces = exact.forces.cpu().numpy()
        assert np.linalg.norm(found.forces - exact_forces) < 1e-5 * np.linalg.norm(exact_forces)
        assert found.energy[0] == pytest.approx(float(exact.energy), abs=1e-5)
    assert "slabs of atoms, one after the other" in step.report().plan


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_large_structure_takes_less_memory(monkeypatch):
    """98,304 atoms of water with the shipped potential, whole and in slabs, which a graph replays with equal bits."""
    monkeypatch.setattr(order_of_slabs, "ROWS", 64)
    numbers, positions, cell = water_box(32768)
    system, found = System.create(positions, numbers, cell, True), []
    for most in (None, 3_500_000_000):
        step = CapturedStep(load(dtype=torch.float32, device="cuda"), system, mode="graph", max_memory=most)
        first = step(positions).forces
        assert np.array_equal(step(positions).forces, first)
        found.append((first, step.report()))
        assert step.engine.plan.kernels.chain == (SLABS if most else "blocks")
        del step
    (whole, kept), (parts, little) = found
    assert np.linalg.norm(parts - whole) < 5e-6 * np.linalg.norm(whole)
    assert little.bytes_per_atom < 30_000 < 60_000 < kept.bytes_per_atom


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_too_little_memory_is_refused():
    numbers, positions, cell = water_box(32768)
    with pytest.raises(OutOfDeviceMemory, match="max_memory must be at least .* GB for 98,304 atoms .*, got 1 GB"):
        CapturedStep(
            load(dtype=torch.float32, device="cuda"), System.create(positions, numbers, cell, True), max_memory=10**9
        )


@needs_kernels
def test_an_engine_without_the_order_of_slabs_takes_none(small, monkeypatch):
    """As a member of an ensemble: its atoms are in another order."""
    potential, batch = potential_of(num_layers=1).to(DEVICE), batch_of(cloud(41, [True, True, False])).to(DEVICE)
    engine = GpuEngine(potential, batch.to(DEVICE, torch.float32), stress=False)
    engine.model.memory = 1
    engine.reserve(1000)
    assert engine.model.plan.chain == "lean"
    engine.model.layout.rows = 4
    engine.reserve(1000)
    assert engine.model.plan.chain == SLABS
    assert engine.model.buffers.windows.shape.count == 11
