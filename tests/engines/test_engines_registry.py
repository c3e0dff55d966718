"""Engines from outside the package: registered, planned, chosen by name, audited, refused with clear errors."""

import copy
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from model_kinds import zbl

from torchmdx import Calculator, CapturedStep, Ensemble, StepPool, System, TensorNetConfig, engines, evaluate
from torchmdx.commands.cli import main
from torchmdx.engines import register_engine, unregister_engine
from torchmdx.engines.choose import from_outside, plan_for
from torchmdx.engines.exact import ExactEngine
from torchmdx.engines.plan import Network, Workload, machine_named, plan
from torchmdx.engines.registry import ENGINES, registered, require_engine


class Mine(ExactEngine):
    name = "my engine"


class Wrong(Mine):
    def run(self, positions, cell, edges, *, forces=True):
        found = super().run(positions, cell, edges, forces=forces)
        return replace(found, forces=1.01 * found.forces)


def serves(request):
    if request.network.kind != "TensorNet":
        return f"its network must be a TensorNet, got {request.network.kind}"
    return None


def make(potential, batch, *, stress, precision):
    return Mine(potential, batch, stress=stress)


def make_wrong(potential, batch, *, stress, precision):
    return Wrong(potential, batch, stress=stress)


def step_of(potential, atoms, **options):
    return CapturedStep(potential, System.from_ase(atoms), **options)


def test_a_registered_engine_is_planned_evaluated_and_shown(trained, ethanol):
    register_engine("mine", serves, make)
    step = step_of(trained("cpu"), ethanol, stress=False)
    found = step(ethanol.positions)
    wanted = evaluate(trained("cpu", torch.float64), System.from_ase(ethanol)).forces.numpy()
    np.testing.assert_allclose(found.forces, wanted, atol=2e-5)
    report = step.report()
    assert (report.engine, report.engine_why) == ("my engine", "registered engine mine")
    assert "it is registered, and serves" in report.plan
    assert report.error < 1e-5  # the first evaluation was audited
    assert from_outside(step.engine)
    unregister_engine("mine")
    assert step_of(trained("cpu"), ethanol).report().engine != "my engine"


def test_why_it_does_not_serve_stands_in_the_plan(make_potential, ethanol):
    register_engine("mine", serves, make)
    charged = make_potential(torch.float32, model="tensornet2")
    batch = step_of(charged, ethanol).ordered
    text = str(plan_for(charged, batch, stress=False, precision="float32"))
    assert re.search(r"engine mine +not used +its network must be a TensorNet, got TensorNet2", text)
    with_prior = make_potential(torch.float32, priors=[zbl])
    assert "it evaluates no priors, got zbl" in step_of(with_prior, ethanol).report().plan


def test_it_is_not_asked_about_domains_priors_and_float64_unless_it_says_so(trained):
    asked = []

    def records(request):
        asked.append(request)

    register_engine("mine", records, make)
    work, machine = Workload.usual(9), machine_named("CPU")
    facts = dict(registered=registered())
    assert plan(TensorNetConfig(), [zbl()], work, "float32", machine, **facts).engine == "C"
    assert plan(TensorNetConfig(), [], replace(work, domain=True), "float32", machine, **facts).engine == "C"
    assert plan(TensorNetConfig(), [], work, "float64", machine, **facts).engine == "C"
    assert not asked
    assert plan(TensorNetConfig(), [], work, "float32", machine_named("A100"), **facts).engine == "mine"
    register_engine("all", records, make, priors=True, domains=True)
    facts = dict(registered=registered())
    found = plan(TensorNetConfig(), [zbl()], replace(work, domain=True), "float32", machine, **facts)
    assert (found.engine, found.is_registered, found.why) == ("all", True, "registered engine all")
    assert asked[-1].network == Network("TensorNet")


def test_the_command_info_shows_it(tmp_path, trained, capsys):
    import torchmdx

    torchmdx.save(trained("cpu"), tmp_path / "model.safetensors")
    register_engine("mine", serves, make)
    assert main(["info", str(tmp_path / "model.safetensors"), "--atoms", "9", "--card", "CPU"]) == 0
    assert "registered engine mine" in capsys.readouterr().out


def test_a_wrong_engine_is_replaced_by_the_exact_model_before_its_first_result(trained, ethanol, caplog):
    register_engine("wrong", serves, make_wrong)
    wanted = evaluate(trained("cpu", torch.float64), System.from_ase(ethanol)).forces.numpy()
    step = step_of(trained("cpu"), ethanol)
    np.testing.assert_allclose(step(ethanol.positions).forces, wanted, atol=2e-5)
    report = step.report()
    assert report.engine == "exact"
    assert "its forces differ from the exact model's" in report.engine_why
    assert "registered engine wrong" in report.plan


def test_members_of_an_ensemble_keep_their_plans_when_the_exact_model_replaces_them(trained, ethanol):
    register_engine("wrong", serves, make_wrong)
    members = [copy.deepcopy(trained("cpu", seed=seed)) for seed in (2, 3)]
    step = step_of(Ensemble(members), ethanol)
    step(ethanol.positions)
    report = step.report()
    assert report.engine == "2 members: exact"
    assert report.plan is not None
    assert "registered engine wrong" in report.plan


@pytest.mark.parametrize("name", ["exact", "pairs", "mine"])
def test_an_engine_can_be_chosen_by_name(trained, ethanol, name):
    register_engine("mine", lambda request: None, make)
    shown = {"exact": "exact", "pairs": "pairs, float32", "mine": "my engine"}[name]
    step = step_of(trained("cpu"), ethanol, engine=name)
    assert step.report().engine == shown
    assert "it was asked for by name" in step.report().plan
    assert copy.deepcopy(step).report().engine == shown
    ethanol.calc = Calculator(trained("cpu"), device="cpu", engine=name)
    ethanol.get_forces()
    assert ethanol.calc.report().engine == shown


def test_an_engine_named_in_float64_is_asked(trained, ethanol):
    register_engine("mine", serves, make)
    potential = trained("cpu", torch.float64)
    assert step_of(potential, ethanol).report().engine == "compiled"
    assert step_of(potential, ethanol, engine="mine").report().engine == "my engine"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(engine="mine"), "engine must be one of fused, pairs, C, exact, got 'mine'"),
        (dict(engine="fused"), "engine 'fused' can't evaluate this potential here: .* C "),
    ],
    ids=str,
)
def test_names_that_do_not_serve_are_refused(trained, ethanol, options, message):
    pattern = message.replace(" C ", "")
    with pytest.raises(ValueError, match=pattern):
        step_of(trained("cpu"), ethanol, **options)


def test_pools_and_calculators_refuse_unknown_names_when_they_are_made(trained):
    with pytest.raises(ValueError, match="engine must be one of fused, pairs, C, exact, got 'fast'"):
        StepPool(trained("cpu"), engine="fast")
    with pytest.raises(ValueError, match="got 'fast'"):
        Calculator(trained("cpu"), device="cpu", engine="fast")
    with pytest.raises(ValueError, match="engine needs one device, got 'exact' for cpu, cpu"):
        Calculator(trained("cpu"), devices=["cpu", "cpu"], engine="exact")
    require_engine(None)


def test_a_registered_engine_that_refuses_says_why(make_potential, ethanol):
    register_engine("mine", serves, make)
    charged = make_potential(torch.float32, model="tensornet2")
    reason = "engine 'mine' can't evaluate this potential here: its network must be a TensorNet, got TensorNet2"
    with pytest.raises(ValueError, match=reason):
        step_of(charged, ethanol, engine="mine")


@pytest.mark.parametrize("answer", [True, False, "", 3])
def test_another_answer_than_a_reason_is_refused(trained, ethanol, answer):
    register_engine("mine", lambda request: answer, make)
    with pytest.raises(TypeError, match=f"must return None, or the reason why .*, got {answer!r}"):
        step_of(trained("cpu"), ethanol)


def test_an_object_that_is_no_engine_is_refused(trained, ethanol):
    register_engine("mine", serves, lambda potential, batch, *, stress, precision: object())
    parts = "name, table_error, reserve, run"
    with pytest.raises(TypeError, match=f"must be made as an Engine, got a object without {parts}"):
        step_of(trained("cpu"), ethanol)


def test_names_are_checked():
    for name in ("my engine", "", 3):
        with pytest.raises(ValueError, match="an engine's name must consist of letters, digits and _"):
            register_engine(name, serves, make)
    with pytest.raises(ValueError, match="an engine's name must be none of fused, pairs, C, exact, got 'fused'"):
        register_engine("fused", serves, make)
    with pytest.raises(TypeError, match="serves of the engine mine must be a function, got None"):
        register_engine("mine", None, make)
    register_engine("mine", serves, make)
    register_engine("mine", serves, make)  # the same again
    with pytest.raises(ValueError, match="the engine name 'mine' must be new, got that of .*_registry.make"):
        register_engine("mine", serves, make_wrong)
    unregister_engine("mine")
    assert not ENGINES
    with pytest.raises(ValueError, match="the engine must be one of those registered: none, got 'mine'"):
        unregister_engine("mine")


def test_the_door_names_what_is_there():
    assert all(getattr(engines, name) is not None for name in engines.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        engines.nothing  # noqa: B018
