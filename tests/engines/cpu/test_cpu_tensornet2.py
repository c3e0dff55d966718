"""TensorNet2 in C: against the exact model in float64, for every option, with priors, in any division of the work."""

import copy

import numpy as np
import oracles
import pytest
import torch
from compiled_runs import DTYPES, assert_box_is_exact, assert_exact, batch_of, boxes, exact, relative, run
from model_kinds import coulomb

import torchmdx
from torchmdx import TensorNet2Config
from torchmdx.engines.choose import choose_engine
from torchmdx.engines.cpu import build
from torchmdx.engines.cpu import engine as cpu_engine
from torchmdx.engines.cpu.engine import INSTRUCTIONS, CompiledTensorNet, CpuEngine
from torchmdx.engines.cpu.with_priors import CpuPriorEngine
from torchmdx.models.potential import Potential
from torchmdx.neighbors.brute_force import brute_force

pytestmark = pytest.mark.skipif(build.tensornet_library() is None, reason="needs a C compiler")


@pytest.fixture(scope="module")
def charged() -> Potential:
    """A TensorNet2 with filters of the size that training gives them, and forces of about 1 eV/Å."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        made = Potential(TensorNet2Config(num_channels=16, num_radial=8, num_charges=4, max_z=35))
    with torch.no_grad():
        for layer in made.network.layers:
            layer.filters[4].weight.mul_(4)
        made.scale.fill_(20.0)
    return made.eval().requires_grad_(False)


@DTYPES
@boxes(5, 7)
def test_random_boxes(charged, dtype, count, seed, pbc, width, skew):
    assert_box_is_exact(copy.deepcopy(charged).to(dtype=dtype), count, seed, pbc, width, skew)


@pytest.mark.nightly
@boxes(40, 24)
def test_many_random_boxes(charged, count, seed, pbc, width, skew):
    assert_box_is_exact(charged, count, seed, pbc, width, skew)


@pytest.mark.parametrize("priors", [[], [coulomb]], ids=["alone", "coulomb"])
def test_forces_are_the_slope_of_the_energy(make_potential, ethanol, priors):
    potential = make_potential(torch.float32, model="tensornet2", priors=priors)
    batch = batch_of(ethanol, dtype=torch.float64)
    engine, _ = choose_engine(potential, batch, stress=False, precision="float32")

    def energies(moved):
        found = []
        for positions, _ in moved:
            batch.positions.copy_(torch.as_tensor(positions))
            found.append(float(run(potential, batch, engine=engine, forces=False).energy[0]))
        return found

    wanted = oracles.central_forces(energies, ethanol.positions, step=0.02)
    batch.positions.copy_(torch.as_tensor(ethanol.positions))
    found = run(potential, batch, engine=engine).forces.numpy()
    assert np.abs(wanted).max() > 0.1
    assert np.abs(found - wanted).max() < 2e-3 * np.abs(wanted).max()


def test_charges_are_those_of_the_model_and_sum_to_that_of_the_system(charged, ethanol, cation, crystal):
    batch = batch_of(ethanol, cation, crystal)
    network = CompiledTensorNet(charged, batch.num_atoms, batch.num_systems, charges=True)
    edges = brute_force(batch, charged.cutoff)
    found = network.run(batch, batch.positions, batch.cell, edges, forces=False, virial=False).channels
    wide = batch.to(dtype=torch.float64)
    vectors = edges.vectors(wide.positions, wide.cell, wide.system_index)
    _, wanted = copy.deepcopy(charged).double().features(wide, edges, vectors)
    assert found.shape == wanted.shape == (batch.num_atoms, 3 * 4)
    assert float(wanted.std(0).min()) > 1e-3
    assert float((found - wanted).abs().max()) < 1e-6
    sums = torch.zeros(3, 12, dtype=torch.float64).index_add(0, batch.system_index, found.double())
    assert float((sums - torch.tensor([0.0, 1.0, 0.0])[:, None]).abs().max()) < 1e-6


@pytest.mark.parametrize("name", ["tensornet2.ckpt", "tensornet2-coulomb.ckpt", "tensornet2-repulsion.ckpt"])
def test_checkpoints_of_torchmdnet(data, name, ethanol, cation):
    potential = torchmdx.load(data / name, dtype=torch.float32)
    batch = batch_of(ethanol, cation)
    engine, _ = choose_engine(potential, batch, stress=True, precision="float32")
    assert type(engine) in (CpuEngine, CpuPriorEngine)
    wanted = exact(potential, batch)
    # Random weights: forces are small sums of large terms.
    assert relative(run(potential, batch, engine=engine).forces, wanted.forces) < 1e-5


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@DTYPES
def test_every_instruction_set_gives_the_same_numbers(charged, crystal, ethanol, dtype, instructions):
    charged, batch = copy.deepcopy(charged).to(dtype=dtype), batch_of(crystal.repeat(2), ethanol, dtype=dtype)
    engine = CpuEngine(charged, batch, stress=True)
    engine.network = CompiledTensorNet(charged, batch.num_atoms, batch.num_systems, instructions)
    if engine.network.instructions != INSTRUCTIONS[instructions]:
        pytest.skip(f"this processor has no {instructions}")
    assert_exact(run(charged, batch, engine=engine), exact(charged, batch))


@pytest.mark.usefixtures("own_threads")
@DTYPES
def test_equal_bits_for_any_number_of_threads_and_any_memory(charged, crystal, dtype, monkeypatch):
    charged = copy.deepcopy(charged).to(dtype=dtype)
    batch, results = batch_of(crystal.repeat(3), crystal, dtype=dtype), []
    for threads, most in ((1, 2**30), (2, 2**30), (3, 0), (2, 0), (1, 2**30)):
        monkeypatch.setattr(cpu_engine, "MOST_KEPT_BYTES", most)
        torch.set_num_threads(threads)
        engine = CpuEngine(charged, batch, stress=True)
        results.append(run(charged, batch, engine=engine))
        assert engine.network.call.keep == (most > 0)
    for other in results[1:]:
        assert torch.equal(other.forces, results[0].forces)
        assert torch.equal(other.energies, results[0].energies)
        assert torch.equal(other.stress, results[0].stress)


def test_memory_is_that_of_the_edges_within_the_cutoff(charged, ethanol):
    batch = batch_of(ethanol)
    engine = CpuEngine(charged, batch, stress=True)
    first = run(charged, batch, engine=engine)
    size, spare = len(engine.network.scratch), 100_000
    wider = run(charged, batch, engine=engine, spare=spare)
    assert len(engine.network.scratch) - size < 150 * spare  # filters and slopes of a row take 800 bytes a layer
    assert torch.equal(wider.forces, first.forces)


def test_atoms_that_come_together_get_more_memory(charged, ethanol):
    far = ethanol.copy()
    far.positions *= 4
    batch = batch_of(far)
    engine = CpuEngine(charged, batch, stress=True)
    assert_exact(run(charged, batch, engine=engine), exact(charged, batch))
    few = engine.network.call.rows
    batch.positions.copy_(torch.as_tensor(ethanol.positions))
    assert_exact(run(charged, batch, engine=engine), exact(charged, batch))
    assert engine.network.call.rows > 2 * few
