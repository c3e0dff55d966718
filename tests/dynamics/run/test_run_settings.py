"""Options of `torchmdx md` as settings: integrators by name, and what is refused."""

from dataclasses import dataclass

import pytest
from md_runs import parsed

from torchmdx.dynamics.integrators import KINDS, Bussi, Integrator, Langevin, VelocityVerlet
from torchmdx.dynamics.run.settings import RunSettings


def settings(*given) -> RunSettings:
    return RunSettings.from_options(parsed(*given))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--ensemble", "nve"], VelocityVerlet()),
        ([], Langevin(1.0)),
        (["--friction", "2"], Langevin(2.0)),
        (["--thermostat", "bussi"], Bussi(0.1)),
        (["--ensemble", "npt", "--thermostat", "bussi", "--relaxation", "0.2"], Bussi(0.2)),
    ],
)
def test_a_thermostat_is_an_integrator(given, expected):
    assert settings(*given).integrator == expected


def test_frictions_are_those_of_langevin_dynamics():
    assert settings("--friction", "2").friction == 2.0
    assert settings("--ensemble", "nve").friction is None
    assert settings("--thermostat", "bussi").friction is None


def test_an_integrator_of_the_table_needs_no_change_here(monkeypatch):
    @dataclass(frozen=True)
    class Other(Integrator):
        friction: float = 3.0
        name = "other"

        def on_host(self, motion):
            raise NotImplementedError

    monkeypatch.setitem(KINDS, "other", Other)
    assert settings("--thermostat", "other").integrator == Other(3.0)
    assert settings("--thermostat", "other", "--friction", "4").integrator == Other(4.0)
    with pytest.raises(ValueError, match="--relaxation needs --thermostat bussi, got --relaxation 1.0 with other"):
        settings("--thermostat", "other", "--relaxation", "1")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--thermostat", "nose"], r"--thermostat must be one of langevin, bussi.*, got 'nose'"),
        (["--thermostat", "verlet"], r"--thermostat must be one of langevin, bussi.*, got 'verlet'"),
        (["--relaxation", "2"], "--relaxation needs --thermostat bussi, got --relaxation 2.0 with langevin"),
    ],
)
def test_what_does_not_fit_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        settings(*given)
