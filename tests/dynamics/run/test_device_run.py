"""`torchmdx md --engine torchmdx`: runs, replicas, restart, signals and refusals."""

import json
import os
import signal
from pathlib import Path

import ase
import ase.io
import numpy as np
import pytest
from ase.constraints import FixAtoms
from device_runs import assert_same_run, md
from md_runs import assert_refused

import torchmdx
from torchmdx.commands import cli
from torchmdx.dynamics.log import read_log
from torchmdx.dynamics.run.progress import SimulationProgress
from torchmdx.report.view.dcd import open_dcd

pytestmark = pytest.mark.usefixtures("unplotted")


@pytest.mark.parametrize("ensemble", ["nve", "nvt"])
def test_a_restarted_run_is_as_one_that_never_ended(model, ethanol_file, ensemble, capsys):
    assert md(ethanol_file, model, "whole", "--ensemble", ensemble, "--steps", 14) == 0
    assert md(ethanol_file, model, "half", "--ensemble", ensemble, "--steps", 6) == 0
    assert md(ethanol_file, model, "half", "--ensemble", ensemble, "--steps", 14, "--restart") == 0
    assert_same_run("whole", "half")
    final = ase.io.read("whole.final.xyz")
    assert final.info["charge"] == 0
    np.testing.assert_array_equal(final.positions, ase.io.read("half.final.xyz").positions)
    assert "continuing from step 6" in capsys.readouterr().out


@pytest.mark.parametrize("further", [[], ["--hydrogen-mass", 3]])
def test_energy_of_nve_is_that_of_openmm(model, ethanol_file, further):
    """The same structure and velocities, in both engines: positions agree within their precision."""
    pytest.importorskip("openmm")
    atoms = ase.io.read(ethanol_file)
    atoms.set_momenta(np.random.default_rng(0).normal(0, 0.5, (9, 3)))
    ase.io.write("moving.xyz", atoms, format="extxyz")
    options = ["--ensemble", "nve", "--steps", 8, "--precision", "float64", *further]
    assert md("moving.xyz", model, "ours", *options) == 0
    openmm = ["--engine", "openmm", "--device", "cpu", "--save-every", "4", "--log-every", "2", "--timestep", "0.25"]
    openmm += ["--platform", "Reference", "--transport", "python", "--no-page", *map(str, options)]
    assert cli.main(["md", "moving.xyz", "--model", model, "-o", "theirs", *openmm]) == 0
    one, two = (open_dcd(f"{name}.dcd").read(np.arange(3))[0] for name in ("ours", "theirs"))
    np.testing.assert_allclose(one, two, atol=2e-5)
    ours, theirs = (read_log(Path(f"{name}.log")) for name in ("ours", "theirs"))
    np.testing.assert_allclose(ours["potential_eV"], theirs["potential_eV"], atol=1e-6)
    np.testing.assert_allclose(ours["kinetic_eV"], theirs["kinetic_eV"], atol=1e-4)


def write_fast(model, factor=0.95):
    """A fast potential whose forces are a part of those of the model."""
    potential = torchmdx.load(model)
    potential.scale.mul_(factor)
    torchmdx.save(potential, "fast.safetensors")
    return ["--fast", "fast.safetensors", "--inner", 2]


def test_multiple_time_steps_are_those_of_dynamics_and_of_openmm(model, ethanol_file, capsys):
    pytest.importorskip("openmm")
    fast, nve = write_fast(model), ["--ensemble", "nve", "--precision", "float64"]
    atoms = ase.io.read(ethanol_file)
    atoms.set_momenta(np.random.default_rng(0).normal(0, 0.5, (9, 3)))
    ase.io.write("moving.xyz", atoms, format="extxyz")
    assert md("moving.xyz", model, "ours", *nve, *fast, "--steps", 8) == 0
    assert "2 inner steps of 0.25 fs in an outer step of 0.5 fs" in capsys.readouterr().out
    assert md("moving.xyz", model, "half", *nve, *fast, "--steps", 4) == 0
    assert md("moving.xyz", model, "half", *nve, *fast, "--steps", 8, "--restart") == 0
    assert_same_run("ours", "half")
    openmm = ["--engine", "openmm", "--device", "cpu", "--save-every", "4", "--log-every", "2", "--timestep", "0.25"]
    openmm += ["--platform", "Reference", "--transport", "python", "--no-page", *map(str, [*nve, *fast])]
    for steps in ("4", "8"):
        given = [*openmm, "--steps", steps, *(["--restart"] if steps == "8" else [])]
        assert cli.main(["md", "moving.xyz", "--model", model, "-o", "theirs", *given]) == 0
    one, two = (open_dcd(f"{name}.dcd").read(np.arange(3))[0] for name in ("ours", "theirs"))
    np.testing.assert_allclose(one, two, atol=2e-5)
    ours, theirs = (read_log(Path(f"{name}.log")) for name in ("ours", "theirs"))
    for column in ("step", "time_ps", "potential_eV", "kinetic_eV"):
        np.testing.assert_allclose(ours[column], theirs[column], atol=1e-6)
    final, other = (ase.io.read(f"{name}.final.xyz") for name in ("ours", "theirs"))
    np.testing.assert_allclose(final.get_velocities(), other.get_velocities(), atol=1e-5)
    status = md("moving.xyz", model, "half", *nve, *fast[:2], "--inner", 1, "--steps", 12, "--restart")
    assert_refused(capsys, status, "multiple time steps MultipleSteps(inner=1", "was MultipleSteps(inner=2")


def test_small_steps_are_counted_in_the_summary(model, ethanol_file, capsys):
    options = [*write_fast(model), "--max-force-difference", 1e-6, "--steps", 4]
    assert_refused(capsys, md(ethanol_file, model, "run", *options), "step 0: the forces of the fast and the full")
    assert md(ethanol_file, model, "run", *options, "--small-steps") == 0
    assert "2 outer steps were taken with the full potential alone" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--inner", 2], "--inner needs --fast, got it without"),
        (["--fast", "fast.safetensors", "--inner", 3], "--steps must be a multiple of --inner 3, got 8"),
        (["--fast", "fast.safetensors", "--inner", 0], "--inner must be >= 1, got 0"),
        (["--fast", "nowhere.safetensors", "--inner", 2], "nowhere.safetensors"),
    ],
)
def test_multiple_time_steps_that_cannot_be_are_refused(model, ethanol_file, capsys, options, words):
    write_fast(model)
    assert_refused(capsys, md(ethanol_file, model, "run", "--steps", 8, *options), words)


def test_replicas_have_temperatures_seeds_and_files_of_their_own(model, ethanol_file, capsys):
    options = ["--steps", 8, "--replicas", 3, "--temperatures", "200:800"]
    assert md(ethanol_file, model, "run", *options) == 0
    assert "200 to 800 K" in capsys.readouterr().out
    assert md(ethanol_file, model, "one", "--steps", 8, "--temperature", 200) == 0
    assert md(ethanol_file, model, "next", "--steps", 8, "--temperature", 400, "--seed", 6) == 0
    last = [open_dcd(f"{name}.dcd").read(np.array([2]))[0] for name in ("run.0", "run.1", "run.2", "one", "next")]
    np.testing.assert_allclose(last[0], last[3], atol=1e-4)  # the first replica is the run of its seed
    for k in (0, 2, 4):
        assert np.abs(last[1] - last[k]).max() > 1e-3  # the second one is not that of the next seed
    finals = ase.io.read("run.final.xyz", index=":")
    assert [atoms.info["replica"] for atoms in finals] == [0, 1, 2]
    assert md(ethanol_file, model, "run", *options[2:], "--steps", 12, "--restart") == 0
    assert [len(read_log(Path(f"run.{k}.log"))["step"]) for k in range(3)] == [7] * 3


def test_temperatures_are_exchanged(model, ethanol_file, capsys):
    options = ["--replicas", 3, "--temperatures", "300:310", "--exchange-every", 2]
    assert md(ethanol_file, model, "whole", "--steps", 12, *options) == 0
    assert "of the exchanges were accepted" in capsys.readouterr().out
    assert md(ethanol_file, model, "half", "--steps", 5, *options) == 0
    assert md(ethanol_file, model, "half", "--steps", 12, *options, "--restart") == 0
    assert len(set(read_log(Path("whole.0.log"))["thermostat_K"])) > 1
    for number in range(3):
        assert_same_run(f"whole.{number}", f"half.{number}")


@pytest.mark.nightly
def test_replicas_on_two_devices_are_those_of_one(model, ethanol_file, capsys, quick_workers):
    options = ["--replicas", 3, "--temperatures", "300:310", "--exchange-every", 2]
    assert md(ethanol_file, model, "one", "--steps", 12, *options) == 0
    assert md(ethanol_file, model, "two", "--steps", 6, *options, "--devices", 2) == 0
    assert "2 processes on cpu, cpu" in capsys.readouterr().out
    assert md(ethanol_file, model, "two", "--steps", 12, *options, "--restart") == 0
    for number in range(3):
        one, two = (open_dcd(f"{name}.{number}.dcd").read(np.arange(4))[0] for name in ("one", "two"))
        np.testing.assert_allclose(one, two, atol=1e-5)
        one, two = (read_log(Path(f"{name}.{number}.log")) for name in ("one", "two"))
        np.testing.assert_array_equal(one["thermostat_K"], two["thermostat_K"])


def test_hdf5_trajectories(model, ethanol_file, monkeypatch):
    h5py = pytest.importorskip("h5py")
    pages = []
    monkeypatch.setattr(
        "torchmdx.dynamics.run.stages.write_run_page", lambda path, trajectory, *_, **__: pages.append(trajectory)
    )
    options = ["--trajectory", "hdf5", "--save-velocities"]
    assert md(ethanol_file, model, "run", "--steps", 6, *options) == 0
    assert md(ethanol_file, model, "run", "--steps", 13, *options, "--restart") == 0
    assert md(ethanol_file, model, "dcd", "--steps", 13) == 0
    with h5py.File("run.h5") as file:
        positions, velocities = 10 * file["coordinates"][()], file["velocities"][()]
    np.testing.assert_allclose(positions, open_dcd("dcd.dcd").read(np.arange(4))[0], atol=1e-6)
    assert velocities.shape == (4, 9, 3)
    assert [path.name for path in pages] == ["run.h5", "run.h5", "dcd.dcd"]


def test_a_seed_that_was_drawn_is_kept(model, ethanol_file):
    base = ["md", ethanol_file, "--model", model, "-o", "run", "--engine", "torchmdx", "--device", "cpu"]
    assert cli.main([*base, "--steps", "2"]) == 0
    assert cli.main([*base, "--steps", "4", "--restart"]) == 0


def test_fixed_atoms_stay(model, ethanol_file):
    atoms = ase.io.read(ethanol_file)
    atoms.set_constraint(FixAtoms([0, 4]))
    ase.io.write("fixed.xyz", atoms, format="extxyz")
    assert md("fixed.xyz", model, "run", "--steps", 8) == 0
    final = ase.io.read("run.final.xyz")
    np.testing.assert_allclose(final.positions[[0, 4]], atoms.positions[[0, 4]], atol=1e-8)
    assert (np.abs(final.positions - atoms.positions).max(1) > 1e-4).sum() == 7
    assert final.constraints[0].index.tolist() == [0, 4]


def test_constant_pressure(model, capsys):
    """Logs, trajectories and final structures have the changing cell, and a restart continues to the bit."""
    atoms = ase.Atoms("C8", scaled_positions=np.array(list(np.ndindex(2, 2, 2))) / 2, cell=[6.0] * 3, pbc=True)
    ase.io.write("box.xyz", atoms, format="extxyz")
    options = ["--ensemble", "npt", "--pressure", 2e5]
    assert md("box.xyz", model, "whole", *options, "--steps", 12) == 0
    assert md("box.xyz", model, "half", *options, "--steps", 6) == 0
    assert md("box.xyz", model, "half", *options, "--steps", 12, "--restart") == 0
    assert_same_run("whole", "half")
    log, final = read_log(Path("whole.log")), ase.io.read("whole.final.xyz")
    assert log["volume_A3"][0] == pytest.approx(216)
    assert len(set(log["volume_A3"])) == 7
    assert final.cell.volume == pytest.approx(log["volume_A3"][-1], rel=1e-5)
    assert np.isfinite(log["pressure_bar"]).all()
    boxes = open_dcd("whole.dcd").read(np.arange(4))[1]
    assert len(boxes) == 4
    status = md("box.xyz", model, "half", *options[:3], 1e5, "--steps", 14, "--restart")
    assert_refused(capsys, status, "barostat")


def test_a_signal_saves_and_a_restart_continues(model, ethanol_file, monkeypatch, capsys):
    assert md(ethanol_file, model, "whole", "--steps", 12) == 0
    update = SimulationProgress.update

    def interrupting(self, step, row, *, last=False):
        update(self, step, row, last=last)
        if step == 6:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(SimulationProgress, "update", interrupting)
    assert md(ethanol_file, model, "run", "--steps", 12) == 130
    assert "stopped by SIGINT at step 6 of 12" in capsys.readouterr().err
    assert not os.path.exists("run.final.xyz")
    monkeypatch.setattr(SimulationProgress, "update", update)
    assert md(ethanol_file, model, "run", "--steps", 12, "--restart") == 0
    assert_same_run("whole", "run")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--ensemble", "npt", "--barostat", "anisotropic"], ["--barostat anisotropic needs --engine openmm"]),
        (["--ensemble", "npt"], ["a barostat needs cells that are periodic along all directions"]),
        (["--platform", "CPU"], ["--platform needs --engine openmm"]),
        (["--minimize"], ["--minimize needs --engine openmm", "torchmdx relax"]),
        (["--audit-every", 3], ["--audit-every needs --engine openmm"]),
        (["--replicas", 0], ["--replicas must be >= 1, got 0"]),
        (["--temperatures", "300:600"], ["--temperatures needs --replicas of at least 2, got 1"]),
        (["--temperatures", "600:300", "--replicas", 2], ["LOW:HIGH in K with 0 < LOW <= HIGH, got '600:300'"]),
        (["--temperatures", "300", "--replicas", 2], ["LOW:HIGH in K", "got '300'"]),
        (["--temperatures", "1:2", "--temperature", 3, "--replicas", 2], ["exclude each other"]),
        (["--exchange-every", 2, "--replicas", 2], ["--exchange-every needs --temperatures, got 2 without it"]),
        (["--exchange-every", 2, "--replicas", 2, "--temperatures", "1:2", "--ensemble", "nve"], ["an exchange needs"]),
        (["--devices", 2], ["devices must not be more than the 1 structures, got 2"]),
        (["--devices", 0], ["devices must be >= 1, got 0"]),
        (["--save-velocities"], ["--save-velocities needs --trajectory hdf5, got dcd"]),
        (["--velocities", "file"], ["needs velocities in the file"]),
        (["--restart"], ["run.json' does not exist"]),
        (["--restraints", "none.json"], ["none.json"]),
    ],
)
def test_what_cannot_be_done_is_refused(model, ethanol_file, capsys, options, words):
    assert_refused(capsys, md(ethanol_file, model, "run", "--steps", 4, *options), *words)
    assert not os.path.exists("run.dcd")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (["--replicas", "2"], "--replicas needs --engine torchmdx, got 2 with --engine openmm"),
        (["--thermostat", "bussi"], "--thermostat bussi needs --engine torchmdx, got it with --engine openmm"),
        (["--relaxation", "0.2"], "--relaxation needs --engine torchmdx, got 0.2 with --engine openmm"),
        (["--exchange-on-device"], "--exchange-on-device needs --engine torchmdx, got True with --engine openmm"),
    ],
)
def test_some_options_need_this_engine(model, ethanol_file, capsys, option, words):
    status = cli.main(["md", ethanol_file, "--model", model, "-o", "run", "--steps", "2", *option])
    assert_refused(capsys, status, words)


def test_a_finished_run_is_not_restarted(model, ethanol_file, capsys):
    assert md(ethanol_file, model, "run", "--steps", 4) == 0
    assert_refused(capsys, md(ethanol_file, model, "run", "--steps", 4, "--restart"), "more steps than the 4 completed")


def test_restraints_of_a_file_are_the_windows_of_the_replicas(model, ethanol_file, capsys):
    table = {"kind": "torsion", "atoms": [2, 0, 1, 3], "reference": [60.0, 90.0], "stiffness": 3.0}
    Path("windows.json").write_text(json.dumps([table]))
    options = ["--replicas", 2, "--restraints", "windows.json"]
    assert md(ethanol_file, model, "whole", *options, "--steps", 8) == 0
    assert md(ethanol_file, model, "half", *options, "--steps", 4) == 0
    assert md(ethanol_file, model, "half", *options, "--steps", 8, "--restart") == 0
    for replica, reference in enumerate(table["reference"]):
        assert_same_run(f"whole.{replica}", f"half.{replica}")
        log = read_log(Path(f"whole.{replica}.log"))
        atoms = ase.io.read(ethanol_file)
        difference = (atoms.get_dihedral(2, 0, 1, 3) - reference + 180) % 360 - 180
        assert log["restraint_eV"][0] == pytest.approx(1.5 * np.radians(difference) ** 2, abs=1e-7)
        total = log["potential_eV"] + log["kinetic_eV"] + log["restraint_eV"]
        np.testing.assert_allclose(log["total_eV"], total, atol=2e-8)
    Path("windows.json").write_text(json.dumps([{**table, "stiffness": 4.0}]))
    assert_refused(
        capsys, md(ethanol_file, model, "half", *options, "--steps", 12, "--restart"), "restraints (SHA-256)"
    )
