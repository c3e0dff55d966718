"""TensorNet in one call into C: against the exact model in float64, for every option, size and instruction set."""

from dataclasses import replace

import numpy as np
import oracles
import pytest
import torch
from ase.build import bulk
from ase.build import molecule as ase_molecule
from ase.io import read
from compiled_runs import DTYPES, LIMIT, assert_box_is_exact, assert_exact, batch_of, boxes, exact, relative, run

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
@DTYPES
def test_the_shipped_potential(data, name, dtype):
    atoms = read(data / "alanine_dipeptide.pdb") if name == "dipeptide" else ase_molecule(name)
    atoms.rattle(0.05, seed=3)
    potential = torchmdx.load(dtype=dtype)
    batch = batch_of(atoms, dtype=dtype)
    assert_exact(run(potential, batch), exact(potential, batch))


@DTYPES
@boxes(6, 8)
def test_random_boxes(trained, dtype, count, seed, pbc, width, skew):
    assert_box_is_exact(trained("cpu", dtype), count, seed, pbc, width, skew)


@pytest.mark.nightly
@DTYPES
@boxes(40, 30)
def test_many_random_boxes(trained, dtype, count, seed, pbc, width, skew):
    assert_box_is_exact(trained("cpu", dtype), count, seed, pbc, width, skew)


@pytest.mark.nightly_for("SO(3)")
@pytest.mark.parametrize("group", ["O(3)", "SO(3)"])
@DTYPES
def test_forces_are_the_slope_of_the_energy(make_potential, ethanol, group, dtype):
    potential, step = make_potential(dtype, group=group), 0.02 if dtype == torch.float32 else 1e-4
    one = CompiledTensorNet(potential, len(ethanol), 1)

    def energies(moved):
        found = []
        for positions, _ in moved:
            batch = Batch.from_systems([System.create(positions, ethanol.numbers, dtype=torch.float64)])
            edges = brute_force(batch, potential.cutoff)
            result = one.run(batch, batch.positions, batch.cell, edges, forces=False, virial=False)
            found.append(float(result.energy[0]))
        return found

    wanted = oracles.central_forces(energies, ethanol.positions, step=step)
    found = run(potential, batch_of(ethanol, dtype=dtype)).forces.numpy()
    assert np.abs(wanted).max() > 0.5
    assert np.abs(found - wanted).max() < 2.5 * step**2 * np.abs(wanted).max()


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@DTYPES
def test_every_instruction_set_gives_the_same_numbers(trained, crystal, ethanol, dtype, instructions):
    potential, batch = trained("cpu", dtype), batch_of(crystal.repeat(2), ethanol, dtype=dtype)
    engine = CpuEngine(potential, batch, stress=True)
    engine.network = CompiledTensorNet(potential, batch.num_atoms, batch.num_systems, instructions)
    if engine.network.instructions != INSTRUCTIONS[instructions]:
        pytest.skip(f"this processor has no {instructions}")
    assert_exact(run(potential, batch, engine=engine), exact(potential, batch))


@pytest.mark.usefixtures("own_threads")
@DTYPES
def test_equal_bits_for_any_number_of_threads(trained, crystal, dtype):
    potential, batch = trained("cpu", dtype), batch_of(crystal.repeat(3), crystal, dtype=dtype)
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
    assert why_not_compiled(Network.of(make_potential()), machine) is None
    narrow = why_not_compiled(Network.of(make_potential(torch.bfloat16)), machine)
    assert narrow == "its weights must be torch.float32 or torch.float64, got torch.bfloat16"
    machine, batch = replace(machine, compiled=False), batch_of(ethanol)
    engine, why = choose_engine(trained("cpu"), batch, stress=False, precision="float32", machine=machine)
    assert engine.name == "pairs, float32"
    assert why == "network of pairs: it needs the compiled library"
    wide = trained("cpu", torch.float64), batch_of(ethanol, dtype=torch.float64)
    engine, why = choose_engine(*wide, stress=False, precision="float64", machine=machine)
    assert (engine.name, why) == ("exact", "float64 takes the exact model: it needs the compiled library")


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
