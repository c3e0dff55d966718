"""`torchmdx md --engine torchmdx`: ensembles that disagree, and options of masses, thermostats and exchanges."""

from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from device_runs import assert_same_run, md
from md_runs import TINY, assert_refused, rows

import torchmdx
from torchmdx import Ensemble
from torchmdx.dynamics.integrators import Bussi
from torchmdx.dynamics.log import read_log

pytestmark = pytest.mark.usefixtures("unplotted")


@pytest.fixture
def ensemble(make_potential, folder) -> str:
    torchmdx.save(Ensemble([make_potential(seed=seed, **TINY) for seed in (1, 2, 3)]), "all.safetensors")
    return "all.safetensors"


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_an_ensemble_that_disagrees_ends_the_run_and_keeps_the_frame(ensemble, ethanol_file, capsys, device):
    """The log has the spread, the frame goes to the file of its replica, and without the limit the run continues."""
    options = ["--device", device, "--ensemble", "nve", "--replicas", 2, "--temperature", 2000]
    options += ["--steps", 30, "--log-every", 1]
    assert md(ethanol_file, ensemble, "whole", *options) == 0
    logs = [read_log(Path(f"whole.{number}.log")) for number in (0, 1)]
    assert all((log["energy_spread_eV"] > 0).all() for log in logs)
    largest = np.maximum.accumulate(np.max([log["force_spread_eV_per_A"] for log in logs], axis=0))
    step = int(np.diff(largest).argmax()) + 1
    limit = f"{(largest[step - 1] + largest[step]) / 2:.6f}"
    replica = int(np.argmax([log["force_spread_eV_per_A"][step] for log in logs]))
    capsys.readouterr()
    assert md(ethanol_file, ensemble, "run", *options, "--max-force-spread", limit) == 2
    error = capsys.readouterr().err
    assert f"step {step}: the force spread of the ensemble must be at most {float(limit):g} eV/Å, got " in error
    assert f" of structure {replica}; its frame was appended to 'run.{replica}.uncertain.xyz'" in error
    assert f"the last valid state saved is of step {step - 1}, in run.restart.npz" in error
    assert "Traceback" not in error
    kept = ase.io.read(f"run.{replica}.uncertain.xyz")
    assert kept.arrays["forces_spread"].max() == pytest.approx(logs[replica]["force_spread_eV_per_A"][step], abs=2e-6)
    assert kept.get_potential_energy() == pytest.approx(logs[replica]["potential_eV"][step], abs=1e-4)
    assert not Path(f"run.{1 - replica}.uncertain.xyz").exists()
    assert rows("run.0.log") == rows("whole.0.log")[: step + 1]
    assert md(ethanol_file, ensemble, "run", *options, "--restart") == 0
    for number in (0, 1):
        assert_same_run(f"run.{number}", f"whole.{number}")
    capsys.readouterr()
    assert_refused(capsys, md(ethanol_file, ensemble, "run", *options), f"run.{replica}.uncertain.xyz")
    assert md(ethanol_file, ensemble, "run", *options[:-4], "--steps", 1, "--overwrite") == 0
    assert not Path(f"run.{replica}.uncertain.xyz").exists()


def test_the_first_structure_is_kept_too(ensemble, ethanol_file, capsys):
    assert_refused(
        capsys,
        md(ethanol_file, ensemble, "run", "--steps", 3, "--max-force-spread", 1e-9),
        "step 0: the force spread",
        "its frame was appended to 'run.uncertain.xyz'",
    )
    kept = ase.io.read("run.uncertain.xyz")
    np.testing.assert_allclose(kept.positions, ase.io.read(ethanol_file).positions, atol=1e-7)
    assert_refused(capsys, md(ethanol_file, ensemble, "run", "--steps", 3), "run.uncertain.xyz; --restart continues")


def test_hydrogens_can_be_heavy(model, ethanol_file, capsys):
    heavy = ["--hydrogen-mass", 3]
    assert md(ethanol_file, model, "heavy", "--steps", 8, *heavy) == 0
    assert "hydrogens of 3 amu" in capsys.readouterr().out
    assert md(ethanol_file, model, "light", "--steps", 8) == 0
    system = torchmdx.System.from_ase(ase.io.read(ethanol_file))
    dynamics = torchmdx.Dynamics(
        torchmdx.load(model, dtype=torch.float32), system, timestep=0.25, seed=5, hydrogen_mass=3.0
    )
    final = ase.io.read("heavy.final.xyz").positions
    np.testing.assert_allclose(final, dynamics.run(8).positions, atol=1e-6)
    assert np.abs(final - ase.io.read("light.final.xyz").positions).max() > 1e-3
    assert md(ethanol_file, model, "heavy", "--steps", 12, *heavy, "--restart") == 0
    capsys.readouterr()
    for other, words in ((["--hydrogen-mass", 2.5], "hydrogen mass in amu 2.5, was 3"), ([], "amu None, was 3.0")):
        assert_refused(capsys, md(ethanol_file, model, "heavy", "--steps", 16, *other, "--restart"), words)


def test_velocities_can_be_rescaled(model, ethanol_file, capsys):
    bussi = ["--thermostat", "bussi", "--relaxation", 0.05]
    assert md(ethanol_file, model, "whole", "--steps", 14, *bussi) == 0
    assert "Bussi(relaxation=0.05), 300 K" in capsys.readouterr().out
    assert md(ethanol_file, model, "half", "--steps", 6, *bussi) == 0
    assert md(ethanol_file, model, "half", "--steps", 14, *bussi, "--restart") == 0
    assert_same_run("whole", "half")
    system = torchmdx.System.from_ase(ase.io.read(ethanol_file))
    potential = torchmdx.load(model, dtype=torch.float32)
    dynamics = torchmdx.Dynamics(potential, system, integrator=Bussi(0.05), timestep=0.25, seed=5)
    np.testing.assert_allclose(ase.io.read("whole.final.xyz").positions, dynamics.run(14).positions, atol=1e-6)
    capsys.readouterr()
    more = ["--steps", 20, "--restart"]
    cases = (([], "integrator Langevin"), ([*bussi[:3], 0.1], "Bussi(relaxation=0.1), was Bussi(relaxation=0.05)"))
    for other, words in cases:
        assert_refused(capsys, md(ethanol_file, model, "half", *more, *other), words)


@pytest.mark.gpu
def test_a_gpu_can_decide_exchanges(model, ethanol_file):
    """The replicas are those of a run whose host decides, and a restart continues."""
    base = ["--device", "cuda", "--replicas", 3, "--temperatures", "300:310", "--exchange-every", 8]
    assert md(ethanol_file, model, "host", *base, "--steps", 32) == 0
    assert md(ethanol_file, model, "gpu", *base, "--exchange-on-device", "--steps", 16) == 0
    assert md(ethanol_file, model, "gpu", *base, "--exchange-on-device", "--steps", 32, "--restart") == 0
    for number in range(3):
        one, two = (read_log(Path(f"{name}.{number}.log")) for name in ("host", "gpu"))
        np.testing.assert_array_equal(one["thermostat_K"], two["thermostat_K"])
        np.testing.assert_allclose(one["total_eV"], two["total_eV"], atol=1e-4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--exchange-on-device"], ["--exchange-on-device needs --exchange-every, got it without"]),
        (
            ["--exchange-on-device", "--exchange-every", 2, "--replicas", 2, "--temperatures", "300:310"],
            ["--exchange-on-device needs one GPU, got a CPU"],
        ),
        (["--hydrogen-mass", 0], ["--hydrogen-mass must be finite and > 0 amu, got 0.0"]),
        (["--hydrogen-mass", 9], ["every heavy atom must keep at least the hydrogen mass of 9.0 amu, got "]),
        (
            ["--thermostat", "bussi", "--ensemble", "nve"],
            ["--thermostat needs --ensemble nvt or npt, got --thermostat"],
        ),
        (["--thermostat", "bussi", "--friction", 2], ["--friction needs --thermostat langevin, got --friction 2.0"]),
        (["--relaxation", 2], ["--relaxation needs --thermostat bussi, got --relaxation 2.0 with langevin"]),
        (["--thermostat", "bussi", "--relaxation", -1], ["--relaxation must be finite and > 0 ps, got -1.0"]),
    ],
)
def test_values_that_do_not_fit_are_refused(model, ethanol_file, capsys, options, words):
    assert_refused(capsys, md(ethanol_file, model, "run", "--steps", 4, *options), *words)
    assert not Path("run.dcd").exists()
