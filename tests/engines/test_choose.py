"""Every engine gives the exact model's numbers, and the fastest one that can serve is chosen."""

import copy
import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from model_kinds import d2, kinds, zbl

from torchmdx import Batch, Ensemble, Potential, System, TensorNetConfig, evaluate
from torchmdx.engines import choose
from torchmdx.engines.choose import choose_engine, engine_for, say_slower
from torchmdx.engines.cpu.build import library, tensornet_library
from torchmdx.engines.exact import ExactEngine
from torchmdx.engines.gpu.engine import GpuEngine, kernels_for
from torchmdx.engines.gpu.tensornet import FastTensorNet
from torchmdx.engines.gpu.with_priors import GpuPriorEngine
from torchmdx.engines.pairs.engine import PairEngine
from torchmdx.engines.plan import Workload, machine_named, plan
from torchmdx.engines.plan.serves import MOST_CHANNELS
from torchmdx.models.qet import QETConfig
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.step.captured_step import CapturedStep

COMPILED = "compiled", "one call into C on the CPU"
PAIRS = "pairs, float32", "network of pairs: it needs the compiled library"
EXACT = "exact", "exact model: it needs the compiled library"


def batch_of(potential, *structures):
    return Batch.from_systems([System.from_ase(a, dtype=potential.dtype) for a in structures]).to(potential.device)


def run(engine, batch, cutoff, spare=0):
    edges = brute_force(batch, cutoff)
    edges = brute_force(batch, cutoff, edges.capacity + spare)
    engine.reserve(edges.capacity)
    return engine.run(batch.positions, batch.cell, edges)


def assert_as_exact(outputs, wanted, tolerance):
    forces = wanted.forces.abs().max()
    assert float((outputs.forces - wanted.forces).abs().max() / forces) < tolerance
    assert float((outputs.energies - wanted.energies).abs().max()) < tolerance
    assert float((outputs.energy - wanted.energy).abs().max()) < tolerance * len(wanted.energies)
    if outputs.stress is not None:
        known = ~torch.isnan(wanted.stress)
        assert torch.equal(torch.isnan(outputs.stress), ~known)
        difference = (outputs.stress - wanted.stress)[known]
        assert float(difference.abs().max() / wanted.stress[known].abs().max()) < 10 * tolerance


EXACT_WITHOUT_COMPILER = ("exact", "float64 takes the exact model: it needs the compiled library")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_engine_of_a_trained_tensornet(trained, ethanol, device, dtype):
    potential = trained(device, dtype)
    precision = str(dtype).removeprefix("torch.")
    engine, why = choose_engine(potential, batch_of(potential, ethanol), stress=True, precision=precision)
    exact = ("exact", "float64 takes the exact model")
    names = {
        ("cpu", torch.float32): COMPILED if tensornet_library() is not None else PAIRS,
        ("cpu", torch.float64): COMPILED if tensornet_library(dtype) is not None else EXACT_WITHOUT_COMPILER,
        ("cuda", torch.float32): ("kernels, float32", "fused kernels"),
        ("cuda", torch.float64): exact,
    }
    assert (engine.name, why) == names[device, dtype]
    assert 0 <= engine.table_error <= (1e-6 if dtype == torch.float32 else 1e-10)
    assert (engine.table_error > 0) == (engine.name in (COMPILED[0], "kernels, float32"))


@pytest.mark.gpu
def test_what_the_kernels_cannot_do_the_network_of_pairs_does(trained, ethanol):
    config = dataclasses.replace(trained("cuda").config, num_channels=MOST_CHANNELS + 8, num_layers=1)
    potential = Potential(config).to("cuda").eval().requires_grad_(False)
    batch = batch_of(potential, ethanol)
    engine, why = choose_engine(potential, batch, stress=False, precision="float32")
    assert engine.name == "pairs, float32"
    assert why == f"network of pairs: num_channels must be at most {MOST_CHANNELS}, got {MOST_CHANNELS + 8}"
    assert_as_exact(run(engine, batch, potential.cutoff), evaluate(potential, batch), 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", kinds())
def test_every_model_and_prior_has_an_engine(make_kind, kind, ethanol, dtype):
    potential = make_kind(kind, dtype)
    batch, precision = batch_of(potential, ethanol), str(dtype).removeprefix("torch.")
    engine, why = choose_engine(potential, batch, stress=True, precision=precision)
    if tensornet_library(dtype) is None and dtype == torch.float64:
        assert (engine.name, why) == EXACT_WITHOUT_COMPILER
    elif tensornet_library(dtype) is None:
        assert (engine.name, why) == (PAIRS if library() is not None or not potential.predicts_charges else EXACT)
    elif isinstance(potential.config, QETConfig):
        assert engine.name == "compiled and equilibration"
    elif potential.prior_configs:
        assert (engine.name, why) == ("compiled and priors", "network in C on the CPU, priors separately")
    else:
        assert (engine.name, why) == COMPILED


@pytest.mark.parametrize("kind", kinds("tensornet", "tensornet-gated", "tensornet-target", "tensornet2"))
def test_without_a_compiler_torch_evaluates_the_network_of_pairs_or_the_exact_one(
    make_kind, kind, ethanol, cation, crystal, monkeypatch
):
    """Of a TensorNet2 in blocks, whose memory is bounded."""
    monkeypatch.setattr("torchmdx.engines.cpu.pair_forms.library", lambda: None)
    machine = dataclasses.replace(machine_named("CPU"), compiled=False, pair_kernels=False)
    potential, exact, structures = make_kind(kind, torch.float32), make_kind(kind), (ethanol, crystal, cation)
    batch = batch_of(potential, *structures)
    engine, why = choose_engine(potential, batch, stress=True, precision="float32", machine=machine)
    assert (engine.name, why) == (EXACT if potential.predicts_charges else PAIRS)
    wanted = evaluate(exact, batch_of(exact, *structures), stress=True)
    assert_as_exact(run(engine, batch, potential.search_cutoff(batch), 31), wanted, 1e-4)


def test_another_head_takes_the_exact_model(trained, ethanol):
    """The network of pairs knows the package's own heads."""
    potential = copy.deepcopy(trained("cpu"))
    potential.head.__class__ = type("Head", (type(potential.head),), {})
    engine, why = choose_engine(potential, batch_of(potential, ethanol), stress=False, precision="float32")
    assert (engine.name, why) == ("exact", "exact model: its head must be a ScalarHead or a GatedHead, got a Head")


def test_a_network_that_sees_less_than_its_priors_has_a_list_of_its_own(make_kind, ethanol, crystal, device):
    potential = copy.deepcopy(make_kind("coulomb")).to(device)
    batch = batch_of(potential, ethanol, crystal)
    edges, inner = (brute_force(batch, reach) for reach in (potential.search_cutoff(batch), potential.config.cutoff))
    engine = PairEngine(potential, batch, stress=False)
    engine.reserve(edges.capacity)
    wanted = engine.run(batch.positions, batch.cell, edges)
    assert int(inner.num_edges) <= engine.near.capacity < int(edges.num_edges)
    assert not edges.overflow
    # Too little room is an overflow of the whole list: who runs the engine makes room and reserves anew.
    engine.near.capacity = int(inner.num_edges) - 1
    engine.run(batch.positions, batch.cell, edges)
    assert edges.overflow
    engine.reserve(edges.capacity)
    edges.overflow.zero_()
    again = engine.run(batch.positions, batch.cell, edges)
    assert not edges.overflow
    torch.testing.assert_close(again.forces, wanted.forces)


def test_a_step_grows_both_lists_of_pairs(make_kind, crystal):
    potential = make_kind("coulomb")
    atoms = crystal.repeat(2)
    step = CapturedStep(potential, System.from_ase(atoms), stress=True, engine="pairs")
    for scale in (1.0, 0.8):
        atoms.set_cell(crystal.repeat(2).cell * scale, scale_atoms=True)
        wanted = evaluate(potential, System.from_ase(atoms), stress=True)
        found = step(atoms.positions, atoms.cell.array)
        np.testing.assert_allclose(found.forces, wanted.forces, rtol=0, atol=1e-10)
        np.testing.assert_allclose(found.energy, wanted.energy, rtol=1e-12)
        np.testing.assert_allclose(found.stress, wanted.stress, rtol=0, atol=1e-10)
    assert step.num_recoveries >= 1
    assert step.report().engine == "pairs, float64"


@pytest.mark.gpu
@pytest.mark.parametrize("kind", kinds())
def test_a_gpu_takes_kernels_with_priors_beside_them_or_pairs_where_there_are_none(make_kind, kind, ethanol, crystal):
    """And captures them: a replay gives the exact model's forces, or the audit would have refused it."""
    potential = copy.deepcopy(make_kind(kind, torch.float32)).cuda()
    structures = [System.from_ase(atoms) for atoms in (ethanol, crystal)]
    step = CapturedStep(potential, structures, mode="graph", stress=True)
    positions = np.concatenate([ethanol.positions, crystal.positions])
    step(positions)
    again = step(positions)
    report = step.report()
    chained = kernels_for(potential).why_not(potential, priors=True) is None
    priors = " and priors" if potential.prior_configs else ""
    wanted = {f"kernels{priors}, float32", "kernels, float32, one launch"} if chained else {"pairs, float32"}
    assert report.mode == "graph"
    assert report.engine in wanted
    assert report.error < 1e-4
    np.testing.assert_array_equal(step(positions).forces, again.forces)  # bit for bit


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (dict(priors=[zbl, d2]), "it must have no priors, got zbl, d2"),
        (dict(model="tensornet2"), "its network must be a TensorNet, got TensorNet2"),
        (dict(num_head_layers=1), None),
        (dict(head="gated", num_head_layers=1), None),
        (dict(messages="target"), None),
        (dict(), None),
    ],
    ids=["priors", "tensornet2", "longer head", "gated head", "messages of own tensors", "plain"],
)
def test_the_kernels_are_for_a_plain_tensornet_alone(make_potential, settings, reason):
    pytest.importorskip("triton")
    potential = make_potential(torch.float32, **settings)
    assert FastTensorNet.why_not(potential) == reason
    if reason is not None:
        with pytest.raises(ValueError, match=f"this potential has no fast path: {reason}"):
            FastTensorNet(potential)


@pytest.mark.parametrize("kind", [GpuEngine, GpuPriorEngine])
def test_kernels_that_wait_for_each_other_are_for_one_potential_alone(monkeypatch, trained, ethanol, kind):
    """Members of an ensemble are branches of one graph: two launches whose blocks wait would starve each other."""

    def made(*arguments, **options):
        engine = object.__new__(kind)
        engine.alone = False
        return engine, ""

    monkeypatch.setattr(choose, "choose_engine", made)
    monkeypatch.setattr(
        choose, "EnsembleEngine", lambda engines, *_, **__: SimpleNamespace(engines=engines, streams=[1])
    )
    batch, options = Batch.of(System.from_ase(ethanol)), dict(stress=False, precision="float32")
    one = trained("cpu", torch.float32)
    assert engine_for(one, batch, **options)[0].alone
    members = engine_for(Ensemble([one, one]), batch, **options)[0].engines
    assert [member.alone for member in members] == [False, False]


def test_who_leaves_the_kernels_is_told_once(caplog):
    for _ in range(2):
        say_slower("num_channels must be at most 256, got 320")
    (record,) = caplog.records
    assert record.getMessage() == (
        "a potential is evaluated several times slower than by the fused GPU kernels: "
        "num_channels must be at most 256, got 320"
    )


@pytest.mark.gpu
def test_a_wide_network_on_a_gpu_says_why_it_is_slow(make_potential, ethanol, caplog):
    wide = make_potential(torch.float32, num_channels=258, num_layers=1).to("cuda")
    for _ in range(2):
        choose_engine(wide, batch_of(wide, ethanol), stress=False, precision="float32")
    (record,) = caplog.records
    assert record.getMessage().endswith("fused GPU kernels: num_channels must be at most 256, got 258")


def test_a_step_says_why_it_is_slow(trained, ethanol):
    step = CapturedStep(trained("cpu"), System.from_ase(ethanol))
    assert "fused" not in step.why
    wide = TensorNetConfig(num_channels=320)
    step.engine.plan = plan(wide, [], Workload(atoms=9), "float32", machine_named("H100"))
    assert step.why.endswith("; without the fused kernels: num_channels must be at most 256, got 320")


def test_a_report_ends_with_the_plan(trained, ethanol):
    step = CapturedStep(trained("cpu"), System.from_ase(ethanol))
    report = step.report()
    assert report.plan.startswith(f"9 atoms on CPU, float32: {report.engine_why}\n")
    assert str(report).endswith(report.plan.replace("\n", "\n" + 15 * " "))
    members = CapturedStep(Ensemble([trained("cpu"), trained("cpu", seed=3)]), System.from_ase(ethanol))
    assert members.report().plan == report.plan


def test_positions_of_the_batch_are_not_those_of_the_evaluation(trained, ethanol):
    """An engine takes atoms from its batch, positions and cell from its arguments."""
    potential = trained("cpu", torch.float64)
    batch = batch_of(potential, ethanol)
    engine = ExactEngine(potential, batch, stress=False)
    ethanol.rattle(0.1, seed=4)
    moved = batch_of(potential, ethanol)
    edges = brute_force(moved, potential.cutoff)
    outputs = engine.run(moved.positions, moved.cell, edges)
    np.testing.assert_allclose(outputs.forces, evaluate(potential, moved).forces, rtol=0, atol=1e-5)


def test_an_unknown_precision_is_refused(trained, ethanol):
    potential = trained("cpu")
    with pytest.raises(ValueError, match="precision must be one of float32, float64, got 'float16'"):
        choose_engine(potential, batch_of(potential, ethanol), stress=False, precision="float16")
