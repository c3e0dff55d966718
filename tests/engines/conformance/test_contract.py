"""Every engine of the package, and one from outside, against the contract of engines."""

import copy
import dataclasses
import re

import pytest
import torch
from interpreter import DEVICE, INTERPRETED, needs_kernels
from model_kinds import FEW, as_text, coulomb, kinds, zbl

from torchmdx.engines.choose import choose_engine
from torchmdx.engines.conformance.check import check_engine
from torchmdx.engines.conformance.contract import CONTRACT
from torchmdx.engines.conformance.subject import Subject
from torchmdx.engines.cpu.build import tensornet_library
from torchmdx.engines.exact import ExactEngine
from torchmdx.engines.gpu.engine import GpuEngine, kernels_for, make_kernels
from torchmdx.engines.gpu.with_priors import GpuPriorEngine
from torchmdx.engines.pairs.engine import PairEngine

CHECKS = {name: measure for name, _, measure in CONTRACT}
# Of random weights, whose forces are small sums of large terms.
ALLOWED = 1e-4
ALLOWED_FLOAT64 = 1e-9


def exact(potential, batch, *, stress, precision):
    return ExactEngine(potential, batch, stress=stress)


def pairs(potential, batch, *, stress, precision):
    return PairEngine(potential, batch, stress=stress)


def c_code(potential, batch, *, stress, precision):
    return choose_engine(potential, batch, stress=stress, precision=precision, engine="C")[0]


def kernels(potential, batch, *, stress, precision):
    if potential.prior_configs:
        return GpuPriorEngine(make_kernels(potential, priors=True), potential, batch, stress=stress)
    return GpuEngine(potential, batch, stress=stress)


def chosen(potential, batch, *, stress, precision):
    return choose_engine(potential, batch, stress=stress, precision=precision)[0]


needs_compiler = pytest.mark.skipif(tensornet_library() is None, reason="needs a C compiler")
on_gpu = pytest.mark.gpu
# Name: (factory, device, marks).
ENGINES = {
    "exact": (exact, "cpu", []),
    "pairs": (pairs, "cpu", []),
    "C": (c_code, "cpu", [needs_compiler]),
    "C-float64": (c_code, "cpu", [needs_compiler]),
    "exact-cuda": (exact, "cuda", [on_gpu]),
    "pairs-cuda": (pairs, "cuda", [on_gpu]),
    "kernels": (kernels, DEVICE, [needs_kernels]),
}
# Under the interpreter a run of the kernels takes seconds: these say the most in the least time.
INTERPRETED_CHECKS = ("batch", "empty", "stress", "not a number", "energy alone", "overflow")
INTERPRETED_KINDS = ("tensornet", "everything", "coulomb-ewald")
OPTIONS = [
    dict(num_layers=0),
    dict(num_layers=1, group="SO(3)"),
    dict(num_layers=3, num_channels=40, radial_basis="gauss"),
    dict(num_channels=2, num_head_layers=2, activation="ssp"),
    dict(num_channels=24, activation="tanh", radial_basis="bessel"),
    dict(activation="sigmoid", cutoff=3.1),
    dict(activation="mish", trainable_basis=True),
    dict(activation="swish", head="gated", num_head_layers=2),
    dict(messages="target", self_message=False),
    dict(self_message=False, readout_activation=False, charge_factor=False),
    dict(model="tensornet2", num_layers=0),
    dict(model="tensornet2", num_layers=1, group="SO(3)", num_charges=1),
    dict(model="tensornet2", num_layers=3, num_channels=40, num_charges=17, radial_basis="gauss"),
    dict(model="tensornet2", num_channels=8, num_head_layers=2, activation="ssp", charge_slack=1e-6),
    dict(model="tensornet2", num_channels=24, activation="tanh", radial_basis="bessel"),
    dict(model="tensornet2", activation="sigmoid", cutoff=3.1, num_charges=33),
    dict(model="qet", num_layers=0, hardness="element"),
    dict(model="qet", num_layers=3, num_channels=40, num_head_layers=0, activation="ssp", priors=[zbl]),
    dict(model="tensornet2", activation="mish", trainable_basis=True, num_head_layers=1, priors=[zbl, coulomb]),
]


def engines(*names):
    return [pytest.param(name, marks=ENGINES[name][2], id=name) for name in names or ENGINES]


def takes_long(name, check="", kind=""):
    """Whether kernels under the interpreter are left out."""
    left_out = (check and check not in INTERPRETED_CHECKS) or (kind and kind not in INTERPRETED_KINDS)
    return name == "kernels" and INTERPRETED and left_out


def subject(name, potential):
    make, device, _ = ENGINES[name]
    precision = "float64" if name.endswith("float64") else "float32"
    on_device = copy.deepcopy(potential).to(device, getattr(torch, precision))
    if make is kernels and (reason := kernels_for(on_device).why_not(on_device, priors=True)) is not None:
        pytest.skip(f"the kernels do not serve: {reason}")
    return Subject.of(make, on_device, stress=True, precision=precision)


def assert_passes(check, name, potential):
    error = CHECKS[check](subject(name, potential))
    assert error < (ALLOWED_FLOAT64 if name.endswith("float64") else ALLOWED), f"{check} of {name}: {error:.1e}"


@pytest.mark.nightly_for(
    "exact",
    "qet",
    "tensornet2",
    "kernels-overflow-tensornet",
    "kernels-energy alone-tensornet",
    "kernels-stress-tensornet",
    "kernels-not a number-tensornet",
    "kernels-not a number-everything",
    "kernels-overflow-everything",
    "kernels-energy alone-everything",
    "kernels-batch-everything",
)
@pytest.mark.parametrize("kind", kinds(*FEW, "qet"))
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("engine", engines())
def test_every_behaviour(make_kind, engine, check, kind):
    if takes_long(engine, check, kind):
        pytest.skip("takes long under the interpreter")
    assert_passes(check, engine, make_kind(kind, torch.float32))


@pytest.mark.nightly_for("exact", "float64", "kernels-coulomb-ewald")
@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind.id not in (*FEW, "qet")])
@pytest.mark.parametrize("engine", engines())
def test_every_network_and_prior(make_kind, engine, kind):
    if takes_long(engine, kind=kind):
        pytest.skip("takes long under the interpreter")
    assert_passes("batch", engine, make_kind(kind, torch.float32))
    assert_passes("stress", engine, make_kind(kind, torch.float32))


@pytest.mark.nightly_for("pairs", "exact", "float64")
@pytest.mark.parametrize("options", OPTIONS, ids=as_text)
@pytest.mark.parametrize("engine", engines())
def test_every_option(make_potential, engine, options):
    if takes_long(engine, kind="options"):
        pytest.skip("takes long under the interpreter")
    assert_passes("batch", engine, make_potential(torch.float32, **options))


@pytest.mark.nightly_for("exact")
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", ["exact", "pairs"])
def test_float64_is_exact(make_kind, check, name):
    given = Subject.of(ENGINES[name][0], make_kind("tensornet2"), stress=True, precision="float64")
    assert CHECKS[check](given) < 1e-10


@pytest.mark.parametrize("kind", kinds(*FEW))
def test_the_engine_that_the_plan_takes(make_kind, device, kind):
    found = check_engine(chosen, copy.deepcopy(make_kind(kind, torch.float32)).to(device), allowed=ALLOWED)
    assert found.passed, str(found)


# Engines that break one part of the contract each, and the checks that tell.
def spoiled(change):
    class Spoiled(ExactEngine):
        def run(self, positions, cell, edges, *, forces=True):
            return change(self, super().run, positions, cell, edges, forces)

    return lambda potential, batch, *, stress, precision: Spoiled(potential, batch, stress=stress)


def wrong_forces(engine, run, *inputs):
    found = run(*inputs[:3], forces=inputs[3])
    return dataclasses.replace(found, forces=1.01 * found.forces)


def wrong_stress(engine, run, *inputs):
    found = run(*inputs[:3], forces=inputs[3])
    return found if found.stress is None else dataclasses.replace(found, stress=1.01 * found.stress)


def no_stress(engine, run, *inputs):
    return dataclasses.replace(run(*inputs[:3], forces=inputs[3]), stress=None)


def random_bits(engine, run, *inputs):
    found = run(*inputs[:3], forces=inputs[3])
    return dataclasses.replace(found, forces=found.forces * (1 + 1e-6 * torch.rand(())))


def narrow(engine, run, positions, cell, edges, forces):
    return run(positions.float(), cell, edges, forces=forces)


def writes(engine, run, positions, cell, edges, forces):
    found = run(positions, cell, edges, forces=forces)
    positions.add_(1e-7)
    return found


def first_elements(engine, run, *inputs):
    if not hasattr(engine, "kept"):
        engine.kept = engine.batch.atomic_numbers.clone()
    engine.batch = dataclasses.replace(engine.batch, atomic_numbers=engine.kept)
    return run(*inputs[:3], forces=inputs[3])


def finite(engine, run, *inputs):
    found = run(*inputs[:3], forces=inputs[3])
    return dataclasses.replace(found, energy=found.energy.nan_to_num(), energies=found.energies.nan_to_num())


def never_short(engine, run, positions, cell, edges, forces):
    if edges.overflow:
        raise RuntimeError("the list is too short")
    return run(positions, cell, edges, forces=forces)


def stale_energies(engine, run, positions, cell, edges, forces):
    found = run(positions, cell, edges, forces=forces)
    return found if forces else dataclasses.replace(found, energies=2 * found.energies)


@pytest.mark.nightly_for("wrong_stress", "random_bits", "narrow", "writes", "first_elements", "never_short")
@pytest.mark.parametrize(
    ("change", "failed"),
    [
        (wrong_forces, {"answers", "periodic", "batch", "padding"}),
        (wrong_stress, {"stress"}),
        (no_stress, {"answers", "stress"}),
        (random_bits, {"equal bits"}),
        (narrow, {"far away"}),
        (writes, {"in place", "equal bits"}),
        (first_elements, {"in place"}),
        (finite, {"not a number"}),
        (never_short, {"overflow"}),
        (stale_energies, {"energy alone"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_engine_that_breaks_a_part_fails_there(trained, change, failed, capsys):
    found = check_engine(spoiled(change), trained("cpu"), allowed=1e-5)
    assert failed <= set(found.failed), str(found)
    assert failed == set(found.failed) or change is wrong_forces
    assert re.search(rf"{min(failed)} .*FAIL", capsys.readouterr().out)
    with pytest.raises(ValueError, match="the engine must pass every conformance check, failed "):
        found.require()
