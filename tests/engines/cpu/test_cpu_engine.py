"""TensorNet in one call into C: against the exact model in float64, for every option, size and instruction set."""

from dataclasses import replace

import numpy as np
import oracles
import pytest
import torch
from ase.build import bulk
from ase.build import molecule as ase_molecule
from ase.io import read
from compiled_runs import LIMIT, assert_box_is_exact, assert_exact, batch_of, boxes, exact, relative, run

import torchmdx
from torchmdx import Batch, System
from torchmdx.engines.choose import choose_engine
from torchmdx.engines.cpu import build
from torchmdx.engines.cpu.engine import INSTRUCTIONS, CompiledTensorNet, CpuEngine
from torchmdx.engines.plan import Network, machine_named
from torchmdx.engines.plan.decide import why_not_compiled
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.step.captured_step import CapturedStep

pytestmark = pytest.mark.skipif(build.tensornet_library() is None, reason="needs a C compiler")


@pytest.mark.nightly_for("C6H6")
@pytest.mark.parametrize("name", ["CH3CONH2", "C6H6", "dipeptide"])
def test_the_shipped_potential(data, name):
    atoms = read(data / "alanine_dipeptide.pdb") if name == "dipeptide" else ase_molecule(name)
    atoms.rattle(0.05, seed=3)
    potential = torchmdx.load()
    batch = batch_of(atoms, dtype=torch.float64).to(dtype=potential.dtype)
    assert_exact(run(potential, batch), exact(potential, batch))


@boxes(6, 8)
def test_random_boxes(trained, count, seed, pbc, width, skew):
    assert_box_is_exact(trained("cpu"), count, seed, pbc, width, skew)


@pytest.mark.nightly
@boxes(40, 30)
def test_many_random_boxes(trained, count, seed, pbc, width, skew):
    assert_box_is_exact(trained("cpu"), count, seed, pbc, width, skew)


@pytest.mark.nightly_for("SO(3)")
@pytest.mark.parametrize("group", ["O(3)", "SO(3)"])
def test_forces_are_the_slope_of_the_energy(make_potential, ethanol, group):
    potential = make_potential(torch.float32, group=group)
    one = CompiledTensorNet(potential, len(ethanol), 1)

    def energies(moved):
        found = []
        for positions, _ in moved:
            batch = Batch.from_systems([System.create(positions, ethanol.numbers, dtype=torch.float64)])
            edges = brute_force(batch, potential.cutoff)
            result = one.run(batch, batch.positions, batch.cell, edges, forces=False, virial=False)
            found.append(float(result.energy[0]))
        return found

    wanted = oracles.central_forces(energies, ethanol.positions, step=0.02)
    found = run(potential, batch_of(ethanol)).forces.numpy()
    assert np.abs(wanted).max() > 0.5
    assert np.abs(found - wanted).max() < 1e-3 * np.abs(wanted).max()


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_every_instruction_set_gives_the_same_numbers(trained, crystal, ethanol, instructions):
    potential, batch = trained("cpu"), batch_of(crystal.repeat(2), ethanol)
    engine = CpuEngine(potential, batch, stress=True)
    engine.network = CompiledTensorNet(potential, batch.num_atoms, batch.num_systems, instructions)
    if engine.network.instructions != INSTRUCTIONS[instructions]:
        pytest.skip(f"this processor has no {instructions}")
    assert_exact(run(potential, batch, engine=engine), exact(potential, batch))


@pytest.mark.usefixtures("own_threads")
def test_equal_bits_for_any_number_of_threads(trained, crystal):
    potential, batch = trained("cpu"), batch_of(crystal.repeat(3), crystal)
    results = []
    for threads in (1, 2, 3, 2, 1):
        torch.set_num_threads(threads)
        results.append(run(potential, batch))
    for other in results[1:]:
        assert torch.equal(other.forces, results[0].forces)
        assert torch.equal(other.energies, results[0].energies)
        assert torch.equal(other.stress, results[0].stress)


def test_buffers_are_reused_and_grow_with_the_list(trained, ethanol):
    potential, batch = trained("cpu"), batch_of(ethanol)
    engine = CpuEngine(potential, batch, stress=False)
    run(potential, batch, engine=engine)
    scratch = engine.network.scratch
    for _ in range(3):
        run(potential, batch, engine=engine)
        assert engine.network.scratch is scratch
    wider = run(potential, batch, engine=engine, spare=5000)
    assert len(engine.network.scratch) > len(scratch)
    assert torch.equal(wider.forces, run(potential, batch).forces)


def test_a_potential_it_cannot_evaluate_takes_the_network_of_pairs(make_potential, trained, ethanol):
    machine = machine_named("CPU")
    assert why_not_compiled(Network.of(trained("cpu")), machine) is None
    wide = why_not_compiled(Network.of(make_potential()), machine)
    assert wide == "its weights must be torch.float32, got torch.float64"
    machine, batch = replace(machine, compiled=False), batch_of(ethanol)
    engine, why = choose_engine(trained("cpu"), batch, stress=False, precision="float32", machine=machine)
    assert engine.name == "pairs, float32"
    assert why == "network of pairs: it needs the compiled library"


def test_a_step_in_inference_mode_and_in_a_larger_crystal(trained):
    atoms = bulk("Si", cubic=True).repeat(2)
    atoms.rattle(0.1, seed=2)
    potential = trained("cpu")
    with torch.inference_mode():
        step = CapturedStep(potential, System.from_ase(atoms), stress=True)
        found = step(atoms.positions)
    wanted = exact(potential, batch_of(atoms, dtype=torch.float64))
    assert relative(torch.from_numpy(found.forces), wanted.forces) < LIMIT
    assert relative(torch.from_numpy(found.stress), wanted.stress) < 5 * LIMIT
    assert step.report().engine == "compiled"


def test_memory_that_could_not_be_had_is_asked_for_again(trained, ethanol, monkeypatch):
    """The engine must not use the sizes of the larger list with the memory of the smaller one."""
    potential, batch = trained("cpu"), batch_of(ethanol)
    engine = CpuEngine(potential, batch, stress=False)
    wanted = run(potential, batch, engine=engine)
    empty = torch.empty

    def refuse(*args, **kwargs):
        raise RuntimeError("not enough memory")

    monkeypatch.setattr(torch, "empty", refuse)
    larger = brute_force(batch, potential.cutoff, 5000)
    with pytest.raises(RuntimeError, match="not enough memory"):
        engine.run(batch.positions, batch.cell, larger)
    monkeypatch.setattr(torch, "empty", empty)
    before = engine.network.scratch
    assert torch.equal(run(potential, batch, engine=engine).forces, wanted.forces)
    assert engine.network.scratch is not before
