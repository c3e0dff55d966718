"""What options of `torchmdx md` may be: ranges, and what goes together."""

import re

import pytest
from md_runs import parsed

from torchmdx.dynamics.run.checks import INTERVALS, LIMITED, POSITIVE, option_of, require_consistent, require_ranges


def refused(check, words, *given):
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        check(parsed(*given))


@pytest.mark.parametrize("name", sorted(POSITIVE.keys() - {"time", "relaxation"}))
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_quantity_is_finite_and_greater_than_zero(name, value):
    option, unit = option_of(name), POSITIVE[name]
    refused(require_ranges, f"{option} must be finite and > 0 {unit}, got {value}", f"{option}={value}")


def test_a_skin_and_a_temperature_without_thermostat_may_be_zero():
    require_ranges(parsed("--skin", 0, "--ensemble", "nve", "--temperature", 0))
    refused(require_ranges, "--skin must be finite and >= 0 Å, got -1.0", "--skin=-1")
    refused(require_ranges, "--temperature must be finite and > 0 K, got 0.0", "--temperature=0")


@pytest.mark.parametrize("name", INTERVALS)
def test_an_interval_has_a_step(name):
    refused(require_ranges, f"{option_of(name)} must be >= 1 step, got 0", option_of(name), 0)


def test_a_pressure_may_be_negative():
    require_ranges(parsed("--ensemble", "npt", "--pressure=-100"))
    refused(require_ranges, "--seed must be between 0 and 4294967295, got -1", "--seed=-1")
    refused(require_ranges, "--audit-every must be >= 0 evaluations, got -1", "--audit-every=-1")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--ensemble", "nve", "--friction", "2"], "--friction needs --ensemble nvt or npt, got --friction 2.0"),
        (["--ensemble", "nve", "--pressure", "2"], "--pressure needs --ensemble npt, got --pressure 2.0"),
        (["--ensemble", "nvt", "--barostat", "isotropic"], "--barostat needs --ensemble npt, got --barostat isotropic"),
    ],
)
def test_an_ensemble_uses_its_options(given, words):
    refused(require_ranges, f"{words} with --ensemble {given[1]}", *given)


def test_each_engine_accepts_the_defaults_of_the_other():
    for engine in LIMITED:
        require_consistent(parsed("--engine", engine))


@pytest.mark.parametrize(
    ("engine", "given", "words"),
    [
        ("torchmdx", ["--platform", "CPU"], "--platform needs --engine openmm, got CPU"),
        ("torchmdx", ["--audit-every", 3], "--audit-every needs --engine openmm, got 3"),
        ("torchmdx", ["--barostat", "anisotropic"], "--barostat anisotropic needs --engine openmm, got it"),
        ("openmm", ["--devices", 2], "--devices needs --engine torchmdx, got 2"),
        ("openmm", ["--save-velocities"], "--save-velocities needs --engine torchmdx, got True"),
        ("openmm", ["--thermostat", "bussi"], "--thermostat bussi needs --engine torchmdx, got it"),
    ],
)
def test_an_engine_refuses_what_only_the_other_has(engine, given, words):
    refused(require_consistent, f"{words} with --engine {engine}", "--engine", engine, *given)


@pytest.mark.parametrize("name", ["overwrite", "minimize", "velocities"])
def test_a_restart_takes_no_options_of_the_start(name):
    given = [f"--{name}", *(["new"] if name == "velocities" else [])]
    require_consistent(parsed(*given))
    refused(require_consistent, f"--restart continues a run, got it with --{name}", "--restart", *given)
