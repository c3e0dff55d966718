"""Uncertainties from a captured step: every engine, order and batch; limits; copies; what is refused."""

import copy
import pickle
from dataclasses import replace

import ase.io
import numpy as np
import pytest
import torch
from interpreter import DEVICE, needs_kernels
from uncertain import expected, uncertain

from torchmdx import Batch, Calculator, CapturedStep, Ensemble, StepPool, System, TensorNet2Config, evaluate
from torchmdx.engines.gpu.engine import GpuEngine, make_kernels
from torchmdx.engines.gpu.with_priors import GpuPriorEngine
from torchmdx.engines.plan import Machine, Network, Workload, kernels, plan
from torchmdx.engines.plan.launch_sizes import launch_sizes as sizes
from torchmdx.engines.registry import RegisteredEngine
from torchmdx.neighbors.search import EdgeSearch
from torchmdx.step import change
from torchmdx.step.audit import judge
from torchmdx.step.results import SpreadError, UncertaintyError
from torchmdx.step.uncertainty import UncertaintyProduct, wants_uncertainty

KINDS = ("tensornet", "tensornet-gated", "qet", "tensornet2", "coulomb")


@pytest.fixture
def systems(ethanol, cation):
    nothing = System.create(np.zeros((0, 3)), np.zeros(0, dtype=np.int64))
    return [System.from_ase(ethanol), nothing, System.from_ase(cation)]


@pytest.mark.parametrize("engine", ["C", "pairs", "exact"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_engine_has_those_of_the_formula(kind, engine, make_kind, systems):
    potential, batch = uncertain(make_kind(kind)), Batch.from_systems(systems)
    step = CapturedStep(potential, batch, engine=engine, uncertainty=True)
    found = step(batch.positions)
    of_systems, of_atoms = expected(potential, batch)
    np.testing.assert_allclose(found.energy_uncertainty, of_systems, rtol=2e-6)  # filters are tabulated
    np.testing.assert_allclose(found.energies_uncertainty, of_atoms, rtol=2e-6)
    torch.testing.assert_close(step.last_inputs, evaluate(potential, batch).last_inputs, rtol=1e-5, atol=1e-6)
    # Forces are those of a step without, to the bit, and an evaluation without forces has the same uncertainties.
    plain = CapturedStep(make_kind(kind), batch, engine=engine)
    np.testing.assert_array_equal(found.forces, plain(batch.positions).forces)
    alone = step(batch.positions, forces=False)
    np.testing.assert_array_equal(alone.energy_uncertainty, found.energy_uncertainty)


def test_float32_and_a_crystal_in_another_order(make_kind, crystal, monkeypatch):
    """The copies of an atom have one uncertainty, also where a step sorts atoms, as it does on a GPU."""
    monkeypatch.setattr(change, "choose_order", lambda batch, *_: torch.arange(batch.num_atoms - 1, -1, -1).int())
    potential = uncertain(make_kind("tensornet"))
    small, large = System.from_ase(crystal), System.from_ase(crystal * (3, 3, 3))
    alone = evaluate(potential, small, forces=False)
    step = CapturedStep(copy.deepcopy(potential).float(), large, uncertainty=True)
    found = step(large.positions, large.cell)
    assert step.buffers.order[0] == large.num_atoms - 1
    np.testing.assert_allclose(found.energies_uncertainty, alone.energies_uncertainty.repeat(27), rtol=1e-4)
    np.testing.assert_allclose(found.energy_uncertainty, 27 * alone.energy_uncertainty, rtol=1e-4)


def test_a_step_without_it_omits_it(make_kind, ethanol):
    potential, system = uncertain(make_kind("tensornet")), System.from_ase(ethanol)
    step = CapturedStep(potential, system)
    found = step(system.positions)
    assert (found.energy_uncertainty, found.energies_uncertainty) == (None, None)
    with pytest.raises(ValueError, match="last_inputs needs an evaluation of a step with uncertainty=True, got none"):
        _ = step.last_inputs


def test_an_audit_compares_it(make_kind, ethanol):
    potential, system = uncertain(make_kind("tensornet")), System.from_ase(ethanol)
    step = CapturedStep(potential, system, uncertainty=True, energies=True, audit_every=1)
    step(system.positions)
    assert "uncertainties" in step.verdict.compared
    found = {name: value.clone() for name, value in step.buffers.outputs.items()}
    found["energies_uncertainty"][2] *= 1.01
    verdict = judge(potential, Batch.of(system), found, "float64", 1)
    assert verdict.reason.startswith("its energies uncertainty differs from the exact model's by")


def test_pools_and_copies_of_a_step(make_kind, ethanol, cation):
    potential = uncertain(make_kind("tensornet"))
    pool = StepPool(potential, uncertainty=True)
    for atoms in (ethanol, cation, ethanol):
        system = System.from_ase(atoms)
        found, alone = pool(system), evaluate(potential, system)
        np.testing.assert_allclose(found.energies_uncertainty, alone.energies_uncertainty, rtol=2e-6)
        np.testing.assert_allclose(found.energy_uncertainty, alone.energy_uncertainty, rtol=2e-6)
    step = CapturedStep(potential, system, max_uncertainty=1e3)
    again = pickle.loads(pickle.dumps(step))
    assert float(again.buffers.most) == 1e3
    np.testing.assert_array_equal(again(system.positions).energy_uncertainty, step(system.positions).energy_uncertainty)


def test_a_limit_ends_with_the_frame_of_the_structure(make_kind, systems):
    potential, batch = uncertain(make_kind("tensornet")), Batch.from_systems(systems)
    values = evaluate(potential, batch).energies_uncertainty
    atom, worst = int(values.argmax()), float(values.max())
    CapturedStep(potential, batch, max_uncertainty=1.01 * worst)(batch.positions)
    step = CapturedStep(potential, batch, max_uncertainty=0.99 * worst)
    text = f"the uncertainty of the energy of an atom must be at most {0.99 * worst:g} eV, got {worst:.4g} eV at atom"
    with pytest.raises(UncertaintyError, match=text) as caught:
        step(batch.positions)
    error, system = caught.value, int(batch.system_index[atom])
    assert isinstance(error, SpreadError)
    assert (error.atom, error.structure, error.most) == (atom, system, 0.99 * worst)
    own = batch.system_index == system
    np.testing.assert_allclose(error.frame.energies_uncertainty, values[own], rtol=2e-6)
    np.testing.assert_array_equal(error.frame.positions, batch.positions[own])


def test_the_calculator_has_it_and_stops(make_kind, ethanol, tmp_path):
    potential, file = uncertain(make_kind("tensornet")), tmp_path / "frames.xyz"
    ethanol.calc = Calculator(potential, dtype="float64", device="cpu")
    energy = ethanol.get_potential_energy()
    of_systems, of_atoms = expected(potential, Batch.of(System.from_ase(ethanol)))
    assert ethanol.calc.results["energy_uncertainty"] == pytest.approx(of_systems[0], rel=1e-5)
    np.testing.assert_allclose(ethanol.calc.get_property("energies_uncertainty", ethanol), of_atoms, rtol=1e-5)
    limit = 0.9 * of_atoms.max()
    ethanol.calc.set(max_uncertainty=limit, spread_file=file)
    with pytest.raises(UncertaintyError, match=f"at atom {of_atoms.argmax()}; its frame was appended to '{file}'"):
        ethanol.get_forces()
    frame = ase.io.read(file)
    assert frame.get_potential_energy() == pytest.approx(energy)
    np.testing.assert_allclose(frame.arrays["energies_uncertainty"], of_atoms, rtol=1e-5)
    assert frame.info["energy_uncertainty"] == pytest.approx(of_systems[0], rel=1e-5)
    assert "energy_spread" not in frame.info
    ethanol.calc = Calculator(potential, dtype="float64", device="cpu", uncertainty=False)
    ethanol.get_forces()
    assert "energy_uncertainty" not in ethanol.calc.results


def test_only_a_cpu_computes_it_unasked(make_kind):
    potential = uncertain(make_kind("tensornet"))
    assert wants_uncertainty(potential, None, None)
    elsewhere = copy.deepcopy(potential).to("meta")
    assert not wants_uncertainty(elsewhere, None, None)
    assert wants_uncertainty(elsewhere, None, True)
    assert wants_uncertainty(elsewhere, None, None, 0.1)


@pytest.mark.parametrize("limit", [0.0, -1.0, np.inf])
def test_limits_that_are_none_are_refused(limit, make_kind, ethanol):
    with pytest.raises(ValueError, match=f"max_uncertainty must be > 0 eV and finite, got {limit}"):
        CapturedStep(uncertain(make_kind("tensornet")), System.from_ase(ethanol), max_uncertainty=limit)


def test_what_has_none_is_refused(make_kind, make_potential, ethanol):
    plain, known, system = make_kind("tensornet"), uncertain(make_kind("tensornet")), System.from_ase(ethanol)
    several = Ensemble([make_potential(seed=seed) for seed in (1, 2)])
    adds = "`torchmdx uncertainty FILE DATA` adds it"
    for potential, options, text in (
        (plain, dict(uncertainty=True), f"uncertainty needs a potential that knows it.*{adds}"),
        (plain, dict(max_uncertainty=0.1), f"needs a potential that knows its uncertainty, got 0.1 eV.*{adds}"),
        (several, dict(uncertainty=True), "uncertainty needs a single potential, got an ensemble"),
        (several, dict(max_uncertainty=0.1), "max_uncertainty needs a single potential, got 0.1 eV with an ensemble"),
        (known, dict(max_force_spread=0.1), "max_force_spread needs an ensemble, got 0.1 eV/Å with a single potential"),
    ):
        for make in (lambda p, **o: CapturedStep(p, system, **o), lambda p, **o: Calculator(p, device="cpu", **o)):
            with pytest.raises(ValueError, match=text):
                make(potential, **options)
    with pytest.raises(ValueError, match="max_uncertainty needs uncertainty=True or None, got False and 0.1 eV"):
        Calculator(known, device="cpu", uncertainty=False, max_uncertainty=0.1)
    with pytest.raises(ValueError, match="uncertainty and max_uncertainty need one device, got cpu, cpu"):
        Calculator(known, devices=["cpu", "cpu"], max_uncertainty=0.1)


def test_the_plan_says_what_runs(make_kind):
    """On a GPU other kernels, or none; engines from outside only if they say that they serve."""
    config = make_kind("tensornet").config
    work = Workload(atoms=20, capacity=200, last_inputs=True)
    facts = (config, (), work, "float32", Machine(kind="cpu", name="a CPU"), Network.of_config(config))
    on_cpu = plan(*facts)
    assert on_cpu.engine in ("C", "pairs")
    outside = [
        RegisteredEngine(name, lambda request: None, lambda *given, **more: None, last_inputs=serves)
        for name, serves in (("silent", False), ("telling", True))
    ]
    found = plan(
        config,
        (),
        work,
        "float32",
        Machine(kind="cpu", name="a CPU"),
        Network.of_config(config),
        registered=outside[:1],
    )
    assert (found.engine, found.stages[-1].name) == (on_cpu.engine, "engine silent")
    assert "the inputs of the last layer" in found.stages[-1].why
    found = plan(
        config, (), work, "float32", Machine(kind="cpu", name="a CPU"), Network.of_config(config), registered=outside
    )
    assert found.engine == "telling"


@pytest.mark.nightly_for("rows", "tensornet-gated-blocks", "coulomb")
@needs_kernels
@pytest.mark.parametrize("chain", ["rows", "blocks"])
@pytest.mark.parametrize("kind", ["tensornet", "tensornet-gated", "tensornet2", "coulomb"])
def test_the_kernels_of_a_gpu_give_the_inputs_of_the_last_layer(kind, chain, make_kind, systems, monkeypatch):
    potential = uncertain(make_kind(kind))
    if chain == "blocks":
        monkeypatch.setattr(kernels, "launch_sizes", lambda *given, **more: replace(sizes(*given, **more), row=None))
    batch = Batch.from_systems(systems[::2] if kind == "tensornet" else systems[:1])
    of_systems, of_atoms = expected(potential, batch)
    single = copy.deepcopy(potential).float().to(DEVICE)
    on_device = batch.to(DEVICE, torch.float32)
    model = make_kernels(single, priors=bool(single.prior_configs))
    if single.prior_configs:
        engine = GpuPriorEngine(model, single, on_device, stress=False)
    else:
        engine = GpuEngine(single, on_device, stress=False)
    search = EdgeSearch(single.search_cutoff(on_device))
    edges = search.allocate(on_device)
    engine.reserve(edges.capacity)
    assert engine.model.plan.chain == chain
    product = UncertaintyProduct(single, on_device)
    for forces in (True, False):
        found = engine.run(on_device.positions, on_device.cell, edges, forces=forces)
        for made in (found.uncertainties, product(found.last_inputs)):
            for value, exact in zip(made, (of_systems, of_atoms), strict=True):
                np.testing.assert_allclose(value.cpu(), exact, rtol=1e-4)


def test_a_plan_for_a_gpu_keeps_its_kernels(make_kind):
    """Few atoms have the same kernels with an uncertainty, which one launch computes itself."""
    machine = Machine(kind="gpu", name="a GPU", capability=(9, 0), multiprocessors=132, clusters=((8, 16),))
    inside, beside, behind = "CUDA C++, in the launch", "Triton, a branch", "Triton, after the launch"
    cases = (
        (make_kind("tensornet").config, 20, inside),
        (make_kind("tensornet").config, 200, beside),
        (make_kind("tensornet2").config, 20, beside),
        (TensorNet2Config(), 10, behind),
    )
    for config, atoms, runs in cases:
        network = Network.of_config(config)
        found = [
            plan(config, (), Workload(atoms=atoms, capacity=90, last_inputs=asked), "float32", machine, network)
            for asked in (False, True)
        ]
        without, doubtful = (one.kernels for one in found)
        assert replace(doubtful, stages=()) == replace(without, stages=())
        assert doubtful.stages == without.stages
        assert [stage.runs for stage in found[1].stages if stage.name == "uncertainty"] == [runs]
        assert not any(stage.name == "uncertainty" for stage in found[0].stages)
