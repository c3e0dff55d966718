"""`torchmdx md` end to end: its files, and the physics of its trajectories."""

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import ase.io
import numpy as np
import pytest
from ase import Atoms, units
from dcd import read_dcd
from md_runs import SAME_SEED, assert_same_run, md, rows

from torchmdx import Calculator
from torchmdx.commands import cli
from torchmdx.step import state
from torchmdx.step.audit import Verdict

pytest.importorskip("openmm", reason="needs OpenMM: pip install 'torchmdx[openmm]'")

import openmm

from torchmdx.dynamics.log import read_log
from torchmdx.openmm.native import native


def test_a_run_writes_the_requested_files(capsys, model, ethanol, ethanol_file):
    options = ["--ensemble", "nve", "--steps", 20, "--save-every", 5, "--log-every", 10, "--timestep", 0.4]
    assert md(ethanol_file, model, "run", *options, "--seed", 1) == 0
    printed = capsys.readouterr()
    assert "ethanol.xyz: C2H6O, 9 atoms, no box, charge 0 (the default)" in printed.out
    assert "NVE, from 300 K, 0.4 fs; 20 steps, 0.008 ps; seed 1" in printed.out
    assert "Reference platform; python transport" in printed.out
    assert "frames: 5, log rows: 3; " in printed.out
    assert "100%  step 20/20  0.008 ps" in printed.err
    trajectory, log = read_dcd(Path("run.dcd")), read_log(Path("run.log"))
    assert trajectory["frames"].shape == (5, 9, 3)
    assert (trajectory["first"], trajectory["interval"], trajectory["last"]) == (0, 5, 20)
    assert trajectory["timestep"] == pytest.approx(0.4, rel=1e-6)
    assert list(log["step"]) == [0, 10, 20]
    np.testing.assert_allclose(log["time_ps"], [0, 0.004, 0.008])
    np.testing.assert_allclose(trajectory["frames"][0], ethanol.positions, atol=1e-6)
    final = ase.io.read("run.final.xyz")
    assert list(final.numbers) == list(ethanol.numbers)
    np.testing.assert_allclose(final.positions, trajectory["frames"][-1], atol=1e-6)
    assert Path("run.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    calculator = Calculator(model, dtype="float64", device="cpu")
    for frame, potential in zip(trajectory["frames"][::2], log["potential_eV"], strict=True):
        ethanol.positions = frame
        assert potential == pytest.approx(calculator.get_potential_energy(ethanol), abs=1e-5)
    np.testing.assert_allclose(log["temperature_K"], 2 * log["kinetic_eV"] / (24 * units.kB), rtol=1e-4)
    np.testing.assert_allclose(log["total_eV"], log["potential_eV"] + log["kinetic_eV"], atol=3e-8)
    outputs = [f"run.{ending}" for ending in ("chk", "dcd", "final.xyz", "html", "json", "log", "png", "xml")]
    assert sorted(os.listdir()) == ["ethanol.xyz", "model.safetensors", *outputs]


def test_the_last_line_shows_the_last_step(capsys, model, ethanol_file, unplotted):
    """Also if the log has no row of that step."""
    options = ["--ensemble", "nve", "--timestep", 1, *SAME_SEED, "--save-every", 100]
    assert md(ethanol_file, model, "every", *options, "--steps", 8, "--log-every", 1) == 0
    temperature = read_log(Path("every.log"))["temperature_K"]
    assert abs(temperature[8] - temperature[5]) > 5
    capsys.readouterr()
    for prefix, steps in (("run", ["--steps", 8]), ("parts", ["--steps", 6]), ("parts", ["--steps", 8, "--restart"])):
        assert md(ethanol_file, model, prefix, *options, *steps, "--log-every", 5) == 0
        last = capsys.readouterr().err.splitlines()[-1]
        assert f" {temperature[int(steps[1])]:.0f} K " in last


@pytest.mark.nightly
def test_nve_conserves_energy_to_second_order(model, ethanol_file, unplotted):
    spread = []
    for timestep, steps in ((1.0, 100), (0.5, 200)):
        options = ["--ensemble", "nve", "--timestep", timestep, "--steps", steps, "--log-every", 5, "--overwrite"]
        assert md(ethanol_file, model, "run", *options, *SAME_SEED) == 0
        log = read_log(Path("run.log"))
        spread.append(np.std(log["total_eV"]))
        assert np.ptp(log["potential_eV"]) > 0.05
        assert spread[-1] < 0.02 * np.ptp(log["potential_eV"])
    assert 2.5 < spread[0] / spread[1] < 6


@pytest.mark.nightly
def test_nvt_has_the_requested_temperature(model, salt_file, unplotted):
    friction, steps = 100, 2000
    options = ["--temperature", 450, "--friction", friction, "--timestep", 1, "--steps", steps, "--log-every", 2]
    assert md(salt_file, model, "run", *options, "--seed", 8) == 0
    temperature = read_log(Path("run.log"))["temperature_K"][50:]
    independent = steps * 1e-3 * friction  # the kinetic energy forgets itself in 1/(2 friction)
    error = 450 * np.sqrt(2 / 45 / independent)
    assert abs(temperature.mean() - 450) < 3 * error
    # Canonical fluctuations, relative: 2 / degrees of freedom.
    assert temperature.var() / 450**2 == pytest.approx(2 / 45, rel=0.4)


@pytest.mark.nightly_for("anisotropic")
@pytest.mark.parametrize("barostat", ["isotropic", "anisotropic"])
def test_npt_changes_the_box(model, salt_file, unplotted, barostat):
    options = ["--ensemble", "npt", "--pressure", 1e6, "--barostat", barostat, "--steps", 300, "--timestep", 1]
    assert md(salt_file, model, "run", *options, "--log-every", 50, "--save-every", 50, *SAME_SEED) == 0
    log, cells = read_log(Path("run.log")), read_dcd(Path("run.dcd"))["cells"]
    lengths = cells[:, [0, 2, 5]]
    start = ase.io.read(salt_file)
    assert log["volume_A3"][0] == pytest.approx(start.cell.volume, abs=1e-3)
    assert log["volume_A3"][-1] < 0.99 * start.cell.volume
    np.testing.assert_allclose(cells[:, [1, 3, 4]], 0, atol=1e-12)
    np.testing.assert_allclose(lengths.prod(1), log["volume_A3"], atol=1e-3)
    np.testing.assert_allclose(
        log["density_g_per_cm3"], start.get_masses().sum() / units.kg * 1e3 / (log["volume_A3"] * 1e-24), rtol=1e-5
    )
    ratios = lengths[-1] / lengths[0]
    assert (np.ptp(ratios) < 1e-9) == (barostat == "isotropic")
    final = ase.io.read("run.final.xyz")
    assert final.pbc.all()
    np.testing.assert_allclose(final.cell.lengths(), lengths[-1], atol=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize("barostat", ["isotropic", "anisotropic"])
def test_npt_volume_of_an_ideal_gas(monkeypatch, folder, unplotted, barostat):
    """Atoms without forces, scaled individually: <V> = (N + 1) k T / p, and V varies by 1 / sqrt(N + 1) of that."""

    def add_nothing(system, *arguments, **options):
        force = openmm.PythonForce(lambda state: (0.0, np.zeros((20, 3))))
        force.setUsesPeriodicBoundaryConditions(True)
        system.addForce(force)
        return SimpleNamespace(
            transport="none", why="there are no forces", is_ensemble=False, spread=None, uncertainty=None
        )

    monkeypatch.setattr("torchmdx.commands.md_openmm.simulation.add_potential", add_nothing)
    positions = np.random.default_rng(0).uniform(0, 10, (20, 3))
    ase.io.write("gas.xyz", Atoms("He20", positions, cell=[9.5] * 3, pbc=True), format="extxyz")
    Path("none.ckpt").touch()
    options = ["--ensemble", "npt", "--pressure", 1000, "--barostat", barostat, "--friction", 10, "--timestep", 1]
    steps = ["--steps", 150_000, "--log-every", 100, "--save-every", 150_000, "--seed", 1]
    assert md("gas.xyz", "none.ckpt", "run", *options, *steps) == 0
    volume = read_log(Path("run.log"))["volume_A3"][100:]
    expected = 21 * units.kB * 300 / (1000 * 1e5 * units.Pascal)
    assert volume.mean() == pytest.approx(expected, rel=0.1)
    assert volume.std() / volume.mean() == pytest.approx(21**-0.5, rel=0.2)


def test_minimize_lowers_the_energy_before_the_run(capsys, model, ethanol, ethanol_file, unplotted):
    assert md(ethanol_file, model, "run", "--steps", 1, "--minimize") == 0
    printed = capsys.readouterr().out
    before, after = (float(word) for word in printed.split("minimized: ")[1].split(" eV")[0].split(" -> "))
    calculator = Calculator(model, dtype="float64", device="cpu")
    assert before == pytest.approx(calculator.get_potential_energy(ethanol), abs=1e-5)
    assert after < before - 0.1
    assert read_log(Path("run.log"))["potential_eV"][0] == pytest.approx(after, abs=1e-5)


def test_the_seed_determines_all_random_numbers(capsys, model, ethanol_file, unplotted):
    options = ["--steps", 10, "--save-every", 5, "--log-every", 5]
    for prefix, seed in (("a", 7), ("b", 7), ("c", 8)):
        assert md(ethanol_file, model, prefix, *options, "--seed", seed) == 0
    assert_same_run("a", "b")
    assert rows("a.log") != rows("c.log")
    capsys.readouterr()
    assert md(ethanol_file, model, "d", *options) == 0
    seed = capsys.readouterr().out.split("seed ")[1].split()[0]
    assert md(ethanol_file, model, "e", *options, "--seed", seed) == 0
    assert_same_run("d", "e")


def test_the_platform_follows_the_device(capsys, model, ethanol_file, unplotted):
    command = ["md", ethanol_file, "--model", model, "-o", "run", "--steps", "2", "--device", "cpu"]
    command += ["--transport", "python"]
    assert cli.main(command) == 0
    assert ", CPU platform; " in capsys.readouterr().out


def test_without_matplotlib_there_is_no_plot(capsys, monkeypatch, model, ethanol_file):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    assert md(ethanol_file, model, "run", "--steps", 2) == 0
    assert "no plot: matplotlib is not installed (pip install matplotlib)" in capsys.readouterr().err
    assert not os.path.exists("run.png")


def test_the_page_of_a_run_can_be_left_out(capsys, model, ethanol_file):
    assert md(ethanol_file, model, "run", "--steps", 2, "--no-page") == 0
    assert not os.path.exists("run.html")
    assert md(ethanol_file, model, "run", "--steps", 2, "--overwrite") == 0
    assert "run.html" in capsys.readouterr().out
    assert "<title>ethanol.xyz: NVT" in Path("run.html").read_text()


@pytest.mark.nightly_for("python")
@pytest.mark.parametrize("transport", ["python", "native"])
def test_an_audit_stops_a_run_at_a_stated_step(capsys, model, ethanol_file, monkeypatch, transport):
    if transport == "native" and (reason := native.unavailable(cuda=False)) is not None:
        pytest.skip(f"no plugin: {reason}")
    options = ["--ensemble", "nve", "--steps", 20, "--transport", transport, "--audit-every", 10]
    assert md(ethanol_file, model, "right", *options) == 0
    monkeypatch.setattr(state, "judge", lambda *given: Verdict(1.0, "its forces are wrong"))
    assert md(ethanol_file, model, "wrong", *options) != 0
    assert re.search(r"step \d+: the audit of evaluation 10: its forces are wrong", capsys.readouterr().err)
