"""The second GPU gives the numbers of the first, whatever the entry, with GPU 0 the current one throughout."""

import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from ase.build import bulk, molecule
from model_kinds import kinds

import torchmdx
from torchmdx import Batch, Calculator, Ensemble, System, evaluate
from torchmdx.checkpoints.prepare import prepare_potential
from torchmdx.engines.choose import choose_engine, engine_for
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.neighbors.search import EdgeSearch
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.pool import StepPool

pytestmark = [pytest.mark.gpu, pytest.mark.two_gpus]
GPUS = ("cuda:0", "cuda:1")
FIRST, SECOND = GPUS


@pytest.fixture(autouse=True)
def the_current_gpu_stays():
    torch.cuda.set_device(0)
    yield
    assert torch.cuda.current_device() == 0


def moved(atoms, count: int = 6) -> list[np.ndarray]:
    """Positions of a short walk; steps capture at the third of them."""
    walk = []
    for k in range(count):
        atoms.rattle(0.01, seed=k)
        walk.append(atoms.positions.copy())
    return walk


def assert_close(found, wanted, tolerance: float = 1e-5) -> None:
    """Arrays or tensors, relative to the largest number."""
    found, wanted = (np.asarray(torch.as_tensor(x).detach().cpu().double()) for x in (found, wanted))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * max(1e-3, np.abs(wanted).max()))


def run(step, walk, on: str = "cpu") -> np.ndarray:
    """Forces at each place of a walk; positions come from the host or from a GPU."""
    return np.stack([torch.as_tensor(step(torch.as_tensor(x).to(on)).forces).cpu().numpy() for x in walk])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_calculator_on_either(ethanol, dtype):
    for atoms in (ethanol, molecule("C6H6")):
        walk, found = moved(atoms), []
        for device in GPUS:
            atoms.calc = Calculator(device=device, dtype=dtype, mode="graph")
            found.append([])
            for positions in walk:
                atoms.positions = positions
                found[-1].append([atoms.get_forces(), atoms.get_potential_energy()])
            assert atoms.calc.potential.device == torch.device(device)
            assert atoms.calc.report().mode == "graph"
        for one, other in zip(*found, strict=True):
            assert_close(other[0], one[0])
            assert other[1] == pytest.approx(one[1], rel=1e-6)


@pytest.mark.parametrize("mode", ["graph", "eager", "auto"])
@pytest.mark.parametrize("source", ["cpu", "gpu"])
@pytest.mark.parametrize("kind", kinds())
def test_a_step_of_every_kind_of_potential(make_kind, ethanol, kind, source, mode):
    walk, found = moved(ethanol), []
    for device in GPUS:
        step = CapturedStep(
            prepare_potential(make_kind(kind), torch.float32, device), System.from_ase(ethanol), mode=mode
        )
        found.append(run(step, walk, device if source == "gpu" else "cpu"))
        if mode != "auto":
            assert step.mode == mode
    assert_close(found[1], found[0])


def test_steps_on_both_take_turns(trained, ethanol, crystal):
    for atoms in (ethanol, crystal):
        walk = moved(atoms, 20)
        alone = run(CapturedStep(trained(FIRST), System.from_ase(atoms)), walk)
        steps = [CapturedStep(trained(device), System.from_ase(atoms)) for device in GPUS]
        for positions, wanted in zip(walk, alone, strict=True):
            for step in steps:
                assert_close(step(positions).forces, wanted)
        for step in steps:
            step.assign(System.from_ase(atoms))
            step.capture("device")
            assert_close(step(torch.tensor(walk[0], device=step.device)).forces, alone[0])


def test_steps_on_both_run_in_threads_of_their_own(trained, ethanol):
    """A new thread's current device is 0."""
    walk, found = moved(ethanol, 50), {}
    wanted = run(CapturedStep(trained(FIRST), System.from_ase(ethanol)), walk)

    def work(device):
        found[device] = run(CapturedStep(trained(device), System.from_ase(ethanol), mode="graph"), walk)

    threads = [threading.Thread(target=work, args=(device,)) for device in GPUS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for device in GPUS:
        assert_close(found[device], wanted)


def test_positions_on_another_gpu_are_refused(trained, ethanol):
    step = CapturedStep(trained(SECOND), System.from_ase(ethanol))
    with pytest.raises(ValueError, match="positions must be on the CPU or on cuda:1, got cuda:0"):
        step(torch.tensor(ethanol.positions, device=FIRST))


def test_a_list_that_grows_is_captured_again(trained, crystal):
    step = CapturedStep(trained(SECOND), System.from_ase(crystal), mode="graph")
    step(crystal.positions)
    cell = 0.7 * crystal.cell.array
    positions = 0.7 * crystal.positions
    found = step(positions, cell)
    assert step.num_recoveries >= 1
    assert step.mode == "graph"
    shrunk = crystal.copy()
    shrunk.set_cell(cell)
    shrunk.positions = positions
    assert_close(found.forces, evaluate(trained(SECOND, torch.float64), System.from_ase(shrunk)).forces, 1e-4)


def test_a_pool_on_the_second(trained, ethanol, cation, chiral, crystal, slab):
    pools = [StepPool(trained(device), stress=True) for device in GPUS]
    for k, atoms in enumerate([ethanol, cation, crystal, chiral, slab] * 4):
        atoms.rattle(0.02, seed=k)
        one, other = (pool(System.from_ase(atoms)) for pool in pools)
        assert_close(other.forces, one.forces)
        if atoms.cell.rank == 3:
            assert_close(other.stress, one.stress)
    assert len(pools[0]) == len(pools[1])


@pytest.mark.parametrize("repeats", [1, 5])  # members side by side, in streams of their own, and in turns
def test_an_ensemble_on_the_second(trained, crystal, repeats):
    atoms, results = crystal.repeat(repeats), []
    walk = moved(atoms)
    for device in GPUS:
        ensemble = Ensemble([trained(device, torch.float32, seed) for seed in (2, 3, 4)])
        step = CapturedStep(ensemble, System.from_ase(atoms), mode="graph")
        results.append([step(positions) for positions in walk])
    for one, other in zip(*results, strict=True):
        for name in ("forces", "force_spread", "energy_spread"):
            assert_close(getattr(other, name), getattr(one, name), 1e-4)


@pytest.mark.parametrize("skin", [0.0, 0.5])
@pytest.mark.parametrize("backend", ["triton_brute_force", "triton_cell_list", "brute_force"])
def test_a_search_on_the_second(backend, skin):
    atoms = bulk("Cu", cubic=True).repeat(4)
    atoms.rattle(0.1, seed=1)
    batch = Batch.of(System.from_ase(atoms)).to(SECOND)
    search = EdgeSearch(5.0, skin=skin, backend=backend, reverse=True)
    search.allocate(batch, capacity=100)
    search.grow()
    edges = search.update(batch.positions, batch.cell)
    wanted = brute_force(Batch.of(System.from_ase(atoms)), 5.0 + skin)
    count = int(wanted.num_edges)
    assert (int(edges.num_edges), bool(edges.overflow)) == (count, False)
    assert edges.source.device == torch.device(SECOND)
    for name in ("row_ptr", "target"):
        assert torch.equal(getattr(edges, name)[:count].cpu(), getattr(wanted, name)[:count])
    reverse = search.reverse[:count].long()
    assert torch.equal(edges.source[reverse], edges.target[:count])


@pytest.mark.parametrize("kind", kinds())
def test_evaluate_on_the_second(make_kind, crystal, ethanol, kind):
    for atoms in (ethanol, crystal):
        stress = atoms is crystal
        wanted = evaluate(make_kind(kind), System.from_ase(atoms), stress=stress)
        found = evaluate(
            prepare_potential(make_kind(kind), torch.float64, SECOND), System.from_ase(atoms), stress=stress
        )
        assert found.forces.device == torch.device(SECOND)
        assert_close(found.forces, wanted.forces, 1e-8)
        if stress:
            assert_close(found.stress, wanted.stress, 1e-8)


@pytest.mark.parametrize("kind", kinds())
def test_engines_used_directly(make_kind, ethanol, kind):
    found = []
    for device in GPUS:
        potential = prepare_potential(make_kind(kind), torch.float32, device)
        batch = Batch.of(System.from_ase(ethanol)).to(device, torch.float32)
        edges = brute_force(batch, potential.search_cutoff(batch))
        engine, _ = choose_engine(potential, batch, stress=False, precision="float32")
        engine.reserve(edges.capacity)
        found.append(engine.run(batch.positions, batch.cell, edges).forces.cpu())
        together, _ = engine_for(Ensemble([potential] * 2), batch, stress=False, precision="float32")
        together.reserve(edges.capacity)
        assert_close(together.run(batch.positions, batch.cell, edges).forces, found[-1])
    assert_close(found[1], found[0])


def test_cuda_without_a_number_is_the_current_gpu(ethanol):
    wanted = evaluate(torchmdx.load(dtype=torch.float32), System.from_ase(ethanol)).forces
    with torch.cuda.device(1):
        ethanol.calc = Calculator(device="cuda")
    assert ethanol.calc.potential.device == torch.device(SECOND)
    assert_close(ethanol.get_forces(), wanted, 1e-4)


ALONE = """
import ase.build, torch, torchmdx
atoms = ase.build.molecule("CH3CH2OH")
atoms.calc = torchmdx.Calculator(device="cuda:1", mode="graph")
for k in range(4):
    atoms.rattle(0.01, seed=k)
    atoms.get_forces()
assert torch.cuda.memory_reserved(0) == 0, torch.cuda.memory_reserved(0)
assert torch.cuda.memory_allocated(1) > 0
"""


def test_nothing_is_kept_on_the_first():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", ALONE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
