"""The kernels as an engine: when few atoms are evaluated in one launch, and what happens where that fails."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from ase.build import molecule

from torchmdx import CapturedStep, Dynamics, System, evaluate, relax
from torchmdx.engines.choose import planned_and_actual
from torchmdx.engines.gpu import one_launch
from torchmdx.engines.gpu.engine import GpuEngine
from torchmdx.engines.gpu.tensornet import FastTensorNet
from torchmdx.engines.plan import Workload, machine_named, plan
from torchmdx.engines.plan.few_atoms import MOST_ONE_LAUNCH
from torchmdx.engines.plan.serves import MOST_SLOTS
from torchmdx.runtime.compile_cache import CompileError
from torchmdx.runtime.cuda_kernel import DriverError
from torchmdx.step.results import NonFiniteError
from torchmdx.structures.system import Batch

pytest.importorskip("triton")

from torchmdx.engines.gpu import charged_cluster, edge_maps

CHAIN, SINGLE = "kernels, float32", "kernels, float32, one launch"


def on_hopper():
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == one_launch.CAPABILITY


gpu = pytest.mark.gpu
needs_hopper = pytest.mark.skipif(not on_hopper(), reason=f"needs a GPU of the architecture {one_launch.ARCHITECTURE}")


def engine_of(potential, structure):
    batch = Batch.of(structure).to(potential.device)
    return GpuEngine(potential, batch, stress=False)


def on_h100(engine):
    """The engine, with the plan for an H100."""
    engine.model.machine = machine_named("H100")
    return engine


@pytest.mark.parametrize("error", [CompileError("no NVRTC"), ValueError("no room")], ids=lambda e: type(e).__name__)
def test_where_one_launch_cannot_be_had_the_engine_says_why(make_potential, ethanol, monkeypatch, caplog, error):
    def refuse(model, *, virials):
        raise error

    monkeypatch.setattr(FastTensorNet, "use_one_launch", refuse)
    potential = make_potential(torch.float32, num_channels=128, num_layers=2)
    engine = on_h100(engine_of(potential, System.from_ase(ethanol)))
    engine.reserve(80)
    assert engine.name == CHAIN  # something else may run at the same time
    engine.alone = True
    engine.reserve(80)
    assert engine.name == f"{CHAIN}, several launches: {error}"
    assert caplog.messages == [f"few atoms are evaluated in several launches: {error}"]
    assert engine.model.one_launch is None
    assert engine.model.plan.one_launch
    assert engine.model.outcomes == caplog.messages
    assert not engine.gave_up()


def test_a_report_shows_what_was_planned_and_what_runs_instead(make_potential, ethanol, monkeypatch):
    def refuse(model, *, virials):
        raise CompileError("no NVRTC")

    monkeypatch.setattr(FastTensorNet, "use_one_launch", refuse)
    potential = make_potential(torch.float32, num_channels=128, num_layers=2)
    engine = on_h100(engine_of(potential, System.from_ase(ethanol)))
    assert planned_and_actual(engine) is None  # nobody made a plan for it
    machine, work = engine.model.machine, Workload(atoms=9)
    engine.plan, engine.alone = plan(potential.config, [], work, "float32", machine), True
    engine.reserve(80)
    lines = planned_and_actual(engine).splitlines()
    assert lines[0] == "9 atoms on H100 (sm_90, 79 GiB), float32: fused kernels"
    assert lines[2].split()[:5] == ["few", "atoms", "one", "launch", "of"]
    assert lines[-1] == "  instead: few atoms are evaluated in several launches: no NVRTC"
    assert engine.plan.work.capacity == 80


def test_no_other_machine_takes_one_launch(trained, ethanol):
    engine = engine_of(trained("cpu"), System.from_ase(ethanol))
    engine.alone = True
    engine.reserve(80)
    assert engine.name == CHAIN


def charged_engine(make_potential, ethanol):
    """Of a TensorNet2 with the plan for an H100, with the launch sizes for many edges."""
    potential = make_potential(torch.float32, model="tensornet2", num_channels=128, num_layers=1)
    engine = on_h100(engine_of(potential, System.from_ase(ethanol)))
    planned, tiles = engine.model.planned, replace(engine.model.choose_tiles(9), row=None)
    engine.model.planned = lambda work: replace(planned(work, tiles), edge_maps=engine.model.machine.is_hopper)
    return engine


@pytest.mark.parametrize("error", [None, CompileError("no NVRTC"), DriverError("no kernel")], ids=str)
def test_the_network_of_edges_takes_kernels_that_specialise_where_they_can_be_had(
    make_potential, ethanol, monkeypatch, caplog, error
):
    def make(model):
        made.append(model)
        if error is not None:
            raise error
        return "kernels"

    made = []
    monkeypatch.setattr(edge_maps.EdgeMaps, "made", make)
    engine = charged_engine(make_potential, ethanol)
    for capacity in (80, 90):
        engine.reserve(capacity)
    scratch = engine.model.buffers.scratch.charged
    if error is None:
        assert len(made) == 1
        assert engine.model.edge_maps == "kernels"
        assert scratch.z1
        assert not caplog.messages
    else:
        assert engine.model.edge_maps is None
        assert scratch.piece is not None  # as of Triton's kernels
        assert caplog.messages == 2 * [f"the network of edges is evaluated by Triton's kernels: {error}"]


def test_few_edges_and_other_machines_take_no_kernels_that_specialise(make_potential, ethanol, monkeypatch):
    engine = charged_engine(make_potential, ethanol)
    engine.model.machine = machine_named("A100")
    engine.reserve(80)
    assert engine.model.edge_maps is None
    del engine.model.planned
    monkeypatch.setattr(charged_cluster.ChargedClusters, "made", lambda model, num_atoms, slots: None)
    on_h100(engine)
    engine.reserve(80)
    assert engine.model.edge_maps is None


USUAL = dict(model="tensornet2", num_layers=1, num_channels=128, num_charges=16)


@pytest.mark.parametrize("error", [None, CompileError("no NVRTC"), DriverError("no kernel")], ids=str)
def test_few_atoms_of_a_tensornet2_take_clusters_where_they_can_be_had(
    make_potential, ethanol, monkeypatch, caplog, error
):
    def make(model, num_atoms, slots):
        if error is not None:
            raise error
        return f"{num_atoms} atoms, {slots} edges"

    monkeypatch.setattr(charged_cluster.ChargedClusters, "made", make)
    monkeypatch.setattr(edge_maps.EdgeMaps, "made", lambda model: None)
    potential = make_potential(torch.float32, **USUAL)
    engine = on_h100(engine_of(potential, System.from_ase(ethanol)))
    for capacity in (80, 90):
        engine.reserve(capacity)
        assert engine.model.clusters == (f"9 atoms, {capacity} edges" if error is None else None)
    assert caplog.messages == ([] if error is None else 2 * [f"few atoms are evaluated by Triton's kernels: {error}"])
    assert bool(engine.model.outcomes) == (error is not None)
    engine.reserve(MOST_SLOTS + 1)
    assert engine.model.clusters is None
    pair = on_h100(engine_of(potential, [System.from_ase(ethanol)] * 2))
    pair.reserve(160)
    assert pair.model.clusters is None


def test_other_networks_and_machines_take_no_clusters(make_potential, ethanol):
    def clusters_of(machine, **settings):
        potential = make_potential(torch.float32, **{**USUAL, **settings})
        engine = engine_of(potential, System.from_ase(ethanol))
        engine.model.machine = machine_named(machine)
        engine.reserve(80)
        return engine.model.clusters

    assert clusters_of("A100") is None
    assert clusters_of("H100", activation="tanh") is None
    assert clusters_of("H100", num_channels=64) is None


def steps_of(trained, structures, **settings):
    return CapturedStep(trained("cuda"), structures, mode="graph", **settings)


def assert_right(trained, structures, result):
    wanted = evaluate(trained("cuda", torch.float64), Batch.of(structures).to("cuda"))
    forces = wanted.forces.cpu().numpy()
    assert np.linalg.norm(result.forces - forces) <= 3e-6 * np.linalg.norm(forces)
    np.testing.assert_allclose(result.energy, wanted.energy.cpu(), atol=1e-5, rtol=1e-7)


@gpu
@needs_hopper
def test_a_step_of_few_atoms_is_one_launch(trained, ethanol, cation, crystal):
    for structures in ([ethanol], [crystal], [ethanol, cation, molecule("CH4")]):
        systems = [System.from_ase(atoms) for atoms in structures]
        step = steps_of(trained, systems, energies=True)
        positions = np.concatenate([atoms.positions for atoms in structures])
        for _ in range(4):
            result = step(positions)
        assert step.report().engine == SINGLE
        assert step.report().error < 5e-6
        assert_right(trained, systems, result)
        np.testing.assert_allclose(result.energies.sum(), result.energy.sum(), rtol=1e-12)
        first = step(positions)
        again = step(positions)
        assert np.array_equal(first.forces, again.forces)


@gpu
@needs_hopper
def test_what_one_launch_does_not_serve_takes_several(trained, ethanol):
    many = MOST_ONE_LAUNCH // len(ethanol) + 1
    step = steps_of(trained, [System.from_ase(ethanol)] * many)
    step(np.tile(ethanol.positions, (many, 1)))
    assert step.report().engine == CHAIN


def ethanol_moved(ethanol, distance):
    atoms = ethanol.copy()
    atoms.rattle(0.03, seed=int(distance))
    atoms.positions += [0.3, 4.0 + distance, 0.2]
    return atoms


@gpu
@needs_hopper
def test_a_list_that_grows_and_atoms_that_leave_the_frame(trained, ethanol):
    system = System.from_ase(ethanol)
    step = steps_of(trained, system)
    together = ethanol.copy()
    for number in range(4):
        together += ethanol_moved(ethanol, 4.0 * number)
    apart = together.copy()
    apart.positions += 1e2 * np.repeat(np.arange(5), len(ethanol))[:, None]
    crowded = steps_of(trained, System.from_ase(apart))
    crowded(apart.positions)
    assert_right(trained, System.from_ase(together), crowded(together.positions))
    assert crowded.num_recoveries > 0
    assert crowded.report().engine == SINGLE
    assert_right(trained, system, step(ethanol.positions + 3e5))
    broken = ethanol.positions.copy()
    broken[2, 1] = np.nan
    with pytest.raises(NonFiniteError):
        step(broken)
    assert_right(trained, system, step(ethanol.positions))
    assert step.report().engine == SINGLE  # it was not the launch that failed


@gpu
@needs_hopper
def test_a_step_whose_blocks_give_up_takes_several_launches(trained, ethanol, monkeypatch, caplog):
    monkeypatch.setattr(one_launch, "PATIENCE", 0)
    system = System.from_ase(ethanol)
    step = steps_of(trained, system)
    assert_right(trained, system, step(ethanol.positions))
    assert step.report().engine == CHAIN
    assert step.mode == "graph"
    assert "other work kept the blocks of one launch from running together" in caplog.text
    assert_right(trained, system, step(ethanol.positions))


@gpu
@needs_hopper
def test_a_run_whose_blocks_give_up_on_the_way_goes_on(trained, ethanol):
    potential, system = trained("cuda"), System.from_ase(ethanol)
    given = dict(integrator="verlet", timestep=0.5, temperature=300.0, seed=1, steps_per_replay=5)
    undisturbed, disturbed = (Dynamics(potential, system, **given) for _ in range(2))
    undisturbed.run(25)
    disturbed.run(10)
    step = disturbed.loop.step
    assert step.report().engine == SINGLE
    step.engine.model.one_launch.fixed["patience"] = 0
    disturbed.loop.replays.drop()
    disturbed.run(15)
    assert step.report().engine == CHAIN
    assert disturbed.num_steps == 25
    np.testing.assert_allclose(disturbed.snapshot().positions, undisturbed.snapshot().positions, atol=1e-4)


@gpu
@needs_hopper
def test_a_relaxation_whose_blocks_give_up_goes_on(trained, ethanol, monkeypatch):
    monkeypatch.setattr(one_launch, "PATIENCE", 0)
    (found,) = relax([ethanol], trained("cuda"), fmax=0.1, dtype="float32")
    assert found.converged


@gpu
@needs_hopper
def test_threads_with_steps_of_their_own_on_streams_of_their_own(trained, ethanol):
    """Two kernels that fill the GPU: both end, and their results are right, in one launch or several."""
    system = System.from_ase(ethanol)
    steps = [steps_of(trained, system) for _ in range(3)]
    results, errors = [[] for _ in steps], []

    def work(number):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for turn in range(300):
                    results[number].append(steps[number](ethanol.positions + 0.01 * (turn % 3)))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(steps))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for found in results:
        for result in found[::50]:
            assert_right(trained, system, result)
    assert [step.report().engine for step in steps] == [SINGLE] * 3
