"""TensorNet2 in C: against the exact model in float64, for every option, with priors, in any division of the work."""

import copy

import numpy as np
import oracles
import pytest
import torch
from ase import Atoms
from compiled_runs import LIMIT, assert_box_is_exact, assert_exact, batch_of, boxes, exact, relative, run
from model_kinds import coulomb, zbl

import torchmdx
from torchmdx import Batch, System, TensorNet2Config
from torchmdx.engines.choose import choose_engine
from torchmdx.engines.cpu import build
from torchmdx.engines.cpu import engine as cpu_engine
from torchmdx.engines.cpu.engine import INSTRUCTIONS, CompiledEngine, CompiledTensorNet
from torchmdx.engines.cpu.with_priors import CompiledPriorEngine
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


def test_it_is_the_exact_model(charged, structure):
    batch = batch_of(structure)
    wanted = exact(charged, batch)
    assert_exact(run(charged, batch), wanted)
    assert_exact(run(charged, batch, skin=0.7, spare=33), wanted)


def test_many_systems_of_any_size_with_charges(charged, ethanol, cation, crystal, slab):
    empty = Atoms()
    batch = batch_of(ethanol, empty, crystal, cation, Atoms("O"), slab, empty)
    batch.charge[0] = -2.0
    assert_exact(run(charged, batch), exact(charged, batch))


@pytest.mark.parametrize(
    "options",
    [
        dict(num_layers=0),
        dict(num_layers=1, group="SO(3)", num_charges=1),
        dict(num_layers=3, num_channels=40, num_charges=17, radial_basis="gauss"),
        dict(num_channels=2, num_head_layers=2, activation="ssp", charge_slack=1e-6),
        dict(num_channels=24, activation="tanh", radial_basis="bessel"),
        dict(activation="sigmoid", cutoff=3.1, num_charges=33),
        dict(activation="mish", trainable_basis=True),
    ],
    ids=str,
)
def test_every_option(make_potential, options, cation, crystal):
    potential, batch = make_potential(torch.float32, model="tensornet2", **options), batch_of(crystal, cation)
    # Weights are random and large here: rounding to float32 weighs more than in a trained network.
    assert_exact(run(potential, batch), exact(potential, batch), limit=3e-5)


@boxes(5, 7)
def test_random_boxes(charged, count, seed, pbc, width, skew):
    assert_box_is_exact(charged, count, seed, pbc, width, skew)


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
    assert type(engine) in (CompiledEngine, CompiledPriorEngine)
    wanted = exact(potential, batch)
    # Random weights: forces are small sums of large terms.
    assert relative(run(potential, batch, engine=engine).forces, wanted.forces) < 1e-5


@pytest.mark.parametrize("priors", [[zbl], [coulomb], [zbl, coulomb]], ids=["zbl", "coulomb", "both"])
def test_priors_and_their_gradient_in_the_charges(make_potential, priors, ethanol, crystal, slab):
    potential = make_potential(torch.float32, model="tensornet2", priors=priors)
    batch = batch_of(ethanol, crystal, slab)
    engine, why = choose_engine(potential, batch, stress=True, precision="float32")
    assert (engine.name, why) == ("compiled and priors", "network in C on the CPU, priors separately")
    edges = brute_force(batch, potential.search_cutoff(batch))
    wanted = exact(potential, batch)
    found = engine.run(batch.positions, batch.cell, edges)
    assert relative(found.forces, wanted.forces) < 1e-5
    assert float((found.energies - wanted.energies).abs().max()) < 1e-5 * float(wanted.energies.abs().max())
    known = ~torch.isnan(wanted.stress)
    assert relative(found.stress[known], wanted.stress[known]) < 5e-5
    energies = found.energies.clone()
    assert torch.equal(engine.run(batch.positions, batch.cell, edges, forces=False).energies, energies)
    again = engine.run(batch.positions, batch.cell, edges)
    assert torch.equal(again.forces, found.forces)


def test_priors_of_no_atoms(make_potential):
    potential = make_potential(torch.float32, model="tensornet2", priors=[coulomb])
    batch = batch_of(Atoms())
    engine, _ = choose_engine(potential, batch, stress=True, precision="float32")
    found = engine.run(batch.positions, batch.cell, brute_force(batch, 5.0))
    assert found.energy.tolist() == [0.0]
    assert found.forces.shape == (0, 3)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_every_instruction_set_gives_the_same_numbers(charged, crystal, ethanol, instructions):
    batch = batch_of(crystal.repeat(2), ethanol)
    engine = CompiledEngine(charged, batch, stress=True)
    engine.network = CompiledTensorNet(charged, batch.num_atoms, batch.num_systems, instructions)
    if engine.network.instructions != INSTRUCTIONS[instructions]:
        pytest.skip(f"this processor has no {instructions}")
    assert_exact(run(charged, batch, engine=engine), exact(charged, batch))


@pytest.mark.usefixtures("own_threads")
def test_equal_bits_for_any_number_of_threads_and_any_memory(charged, crystal, monkeypatch):
    batch, results = batch_of(crystal.repeat(3), crystal), []
    for threads, most in ((1, 2**30), (2, 2**30), (3, 0), (2, 0), (1, 2**30)):
        monkeypatch.setattr(cpu_engine, "MOST_KEPT_BYTES", most)
        torch.set_num_threads(threads)
        engine = CompiledEngine(charged, batch, stress=True)
        results.append(run(charged, batch, engine=engine))
        assert engine.network.call.keep == (most > 0)
    for other in results[1:]:
        assert torch.equal(other.forces, results[0].forces)
        assert torch.equal(other.energies, results[0].energies)
        assert torch.equal(other.stress, results[0].stress)


def test_energies_alone(charged, ethanol, crystal):
    batch = batch_of(ethanol, crystal)
    alone, both = run(charged, batch, forces=False), run(charged, batch)
    assert torch.equal(alone.energies, both.energies)
    assert torch.equal(alone.energy, both.energy)


def test_positions_in_float64_far_from_the_origin(charged, ethanol):
    wanted = exact(charged, batch_of(ethanol, dtype=torch.float64))
    ethanol.positions += 3e4
    batch = batch_of(ethanol, dtype=torch.float64)
    assert relative(run(charged, batch).forces, wanted.forces) < LIMIT


def test_atoms_at_one_place_or_at_nan_give_no_finite_energy(charged, ethanol):
    for bad in (np.nan, ethanol.positions[1]):
        batch = batch_of(ethanol)
        edges = brute_force(batch, charged.cutoff)
        batch.positions[0] = torch.as_tensor(bad)
        engine = CompiledEngine(charged, batch, stress=False)
        assert not torch.isfinite(engine.run(batch.positions, batch.cell, edges).energy).all()


def test_charges_of_the_batch_at_each_run(charged, ethanol):
    batch = Batch.from_systems([System.from_ase(ethanol, dtype=torch.float32)])
    engine = CompiledEngine(charged, batch, stress=False)
    before = run(charged, batch, engine=engine)
    batch.charge.fill_(3.0)
    after = run(charged, batch, engine=engine)
    assert relative(after.forces, exact(charged, batch).forces) < LIMIT
    assert relative(before.forces, after.forces.double()) > 1e-3


def test_memory_is_that_of_the_edges_within_the_cutoff(charged, ethanol):
    batch = batch_of(ethanol)
    engine = CompiledEngine(charged, batch, stress=True)
    first = run(charged, batch, engine=engine)
    size, spare = len(engine.network.scratch), 100_000
    wider = run(charged, batch, engine=engine, spare=spare)
    assert len(engine.network.scratch) - size < 150 * spare  # filters and slopes of a row take 800 bytes a layer
    assert torch.equal(wider.forces, first.forces)


def test_atoms_that_come_together_get_more_memory(charged, ethanol):
    far = ethanol.copy()
    far.positions *= 4
    batch = batch_of(far)
    engine = CompiledEngine(charged, batch, stress=True)
    assert_exact(run(charged, batch, engine=engine), exact(charged, batch))
    few = engine.network.call.rows
    batch.positions.copy_(torch.as_tensor(ethanol.positions))
    assert_exact(run(charged, batch, engine=engine), exact(charged, batch))
    assert engine.network.call.rows > 2 * few
