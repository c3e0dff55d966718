"""`torchmdx demo`, with a small potential of random weights: its files, its duration, and its analysis functions."""

import importlib.util
import signal
import subprocess
import sys

import ase.io
import numpy as np
import pytest

from torchmdx.commands import cli
from torchmdx.commands.demo_run import run as demo
from torchmdx.commands.demo_run.pictures import density, path
from torchmdx.dynamics.host_loop import HostLoop
from torchmdx.dynamics.log import read_log
from torchmdx.dynamics.trajectory import read_frames
from torchmdx.structures.units import BOLTZMANN, FORCE_TO_ACCELERATION


@pytest.fixture
def no_report(monkeypatch):
    """Leaves out the pictures, which take longer than the run."""
    monkeypatch.setattr(demo, "_report", lambda *given: None)


@pytest.fixture
def command(data, tmp_path):
    """The command on the CPU, with a new output directory."""
    model = str(data / "tensornet.safetensors")
    return ["demo", "-o", str(tmp_path / "out"), "--model", model, "--device", "cpu", "--seconds", "0.5"]


def test_the_demo_writes_the_files_it_lists(command, tmp_path, capsys):
    assert cli.main(command) == 0
    out = capsys.readouterr().out
    folder = tmp_path / "out"
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "alanine_dipeptide.start.pdb",
        "alanine_dipeptide.dcd",
        "alanine_dipeptide.final.pdb",
        "alanine_dipeptide.log",
        "alanine_dipeptide.html",
        "energy.png",
        "ramachandran.png",
    }
    assert "ns/day" in out
    for name in names:
        assert str(folder / name) in out
    for name in ("energy.png", "ramachandran.png"):
        content = (folder / name).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) > 20_000
    frames = read_frames(folder / "alanine_dipeptide.dcd", 22)
    rows = read_log(folder / "alanine_dipeptide.log")
    assert rows["step"][0] == 0
    assert len(rows["step"]) == (len(frames) - 1) // demo.FRAMES_A_ROW + 1
    assert rows["time_ps"][-1] == pytest.approx(rows["step"][-1] * 0.002)
    last = ase.io.read(folder / "alanine_dipeptide.final.pdb")
    assert last.positions == pytest.approx(frames[-1], abs=2e-3)  # three digits in a PDB file
    assert len(ase.io.read(folder / "alanine_dipeptide.start.pdb")) == 22
    assert not np.allclose(frames[0], frames[-1])
    assert cli.main([*command, "--seed", "2"]) == 0  # and again over the old ones
    assert {path.name for path in folder.iterdir()} == names


def test_a_signal_leaves_the_plots_of_the_completed_part(command, tmp_path, monkeypatch, capsys):
    append = demo.Trajectory.append

    def append_and_stop(self, frame):
        append(self, frame)
        if self.num_frames == 4:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(demo.Trajectory, "append", append_and_stop)
    assert cli.main([*command, "--seconds", "2"]) == 128 + signal.SIGTERM
    assert len(read_frames(tmp_path / "out" / "alanine_dipeptide.dcd", 22)) == 4
    assert (tmp_path / "out" / "ramachandran.png").is_file()


@pytest.mark.nightly
def test_a_seed_gives_the_same_run_whatever_its_length(command, no_report, tmp_path):
    def run(name: str, *more: str) -> np.ndarray:
        assert cli.main([*command, "-o", str(tmp_path / name), *more]) == 0
        return read_frames(tmp_path / name / "alanine_dipeptide.dcd", 22)

    first, longer, other = run("a"), run("b", "--seconds", "1"), run("c", "--seed", "2")
    common = min(len(first), len(longer))
    assert common > 3
    assert np.array_equal(first[:common], longer[:common])
    assert not np.allclose(first[1], other[1], atol=1e-2)


@pytest.mark.nightly
def test_the_molecule_stays_where_it_was(command, no_report, tmp_path):
    """The thermostat moves it: by some 0.2 Å in this time."""
    assert cli.main(command) == 0
    frames = read_frames(tmp_path / "out" / "alanine_dipeptide.dcd", 22)
    masses = ase.io.read(tmp_path / "out" / "alanine_dipeptide.start.pdb").get_masses()
    masses = np.where(masses < 1.1, 3.0, masses)
    heavy = {1: 3, 4: 0, 6: 1, 8: 1, 10: 3, 16: 1, 18: 3}  # hydrogens at each atom
    for atom, hydrogens in heavy.items():
        masses[atom] -= hydrogens * (3.0 - 1.008)
    centres = np.average(frames, axis=1, weights=masses)
    assert np.abs(centres - centres[0]).max() < 1e-4


@pytest.mark.nightly
def test_the_log_has_the_temperature_of_the_thermostat(command, no_report, tmp_path, monkeypatch):
    """Velocities amid two steps, which are those before and after a kick on average."""
    states = []
    monkeypatch.setattr(demo, "_centre", lambda state: states.append(state) or np.zeros(3))
    assert cli.main(command) == 0
    rows = read_log(tmp_path / "out" / "alanine_dipeptide.log")
    state = next(state for state in states if state.step == rows["step"][1])
    velocities = state.velocities + demo.TIMESTEP / 2 * FORCE_TO_ACCELERATION * (
        state.forces / state.particles.masses[:, None]
    )
    kinetic = (state.particles.masses[:, None] * velocities**2).sum() / 2 / FORCE_TO_ACCELERATION
    assert rows["temperature_K"][1] == pytest.approx(2 * kinetic / (66 * BOLTZMANN), abs=0.01)


@pytest.mark.nightly
@pytest.mark.parametrize(("seconds_a_step", "frames"), [(0.01, 5), (0.001, 50), (0.0005, 100)])
def test_the_demo_takes_its_time_on_a_machine_that_changes_its_speed(
    command, no_report, tmp_path, monkeypatch, seconds_a_step, frames
):
    """A step of equilibration takes 0.001 s."""
    step = HostLoop._advance
    clock = [0.0]
    monkeypatch.setattr(demo.time, "perf_counter", lambda: clock[0])

    def timed(self):
        step(self)
        writing = (tmp_path / "out" / "alanine_dipeptide.dcd").exists()
        clock[0] += seconds_a_step if writing else 0.001

    monkeypatch.setattr(HostLoop, "_advance", timed)
    assert cli.main(command) == 0
    assert len(read_frames(tmp_path / "out" / "alanine_dipeptide.dcd", 22)) - 1 == pytest.approx(frames, abs=1)


def test_a_fast_machine_writes_no_more_frames_than_fit(command, no_report, tmp_path, monkeypatch):
    """Twice as fast as would give as many as there may be: every second one is left out."""
    monkeypatch.setattr(demo, "MOST_FRAMES", 25)
    step, clock = HostLoop._advance, [0.0]
    monkeypatch.setattr(demo.time, "perf_counter", lambda: clock[0])

    def timed(self):
        step(self)
        clock[0] += 0.001

    monkeypatch.setattr(HostLoop, "_advance", timed)
    assert cli.main(command) == 0
    assert len(read_frames(tmp_path / "out" / "alanine_dipeptide.dcd", 22)) == pytest.approx(26, abs=1)
    rows = read_log(tmp_path / "out" / "alanine_dipeptide.log")
    assert np.diff(rows["step"]).tolist() == [20 * demo.FRAMES_A_ROW] * 5


def test_a_run_that_flies_apart_ends(command, monkeypatch, capsys):
    monkeypatch.setattr(demo, "MOST_TEMPERATURE", 1.0)
    assert cli.main(command) == 2
    assert "step 500: the run is unstable: it has a temperature of" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option", [["--seconds", "0"], ["--seconds", "nan"], ["--temperature", "-3"], ["--seed", "-1"]]
)
def test_values_out_of_range_are_rejected_before_anything_is_written(command, tmp_path, option, capsys):
    assert cli.main([*command, *option]) == 2
    assert f"{option[0]} must be" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.nightly
def test_the_demo_needs_no_openmm(command):
    """In a process of its own, in which OpenMM cannot be imported."""
    program = (
        "import sys; sys.modules['openmm'] = None\nfrom torchmdx.commands.cli import main\nsys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", program, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "alanine_dipeptide.html" in done.stdout


def test_without_matplotlib_the_error_says_so_before_the_run(command, tmp_path, monkeypatch, capsys):
    find = importlib.util.find_spec
    hidden = "matplotlib"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == hidden else find(name, *more))
    assert cli.main(command) == 2
    assert "which is not installed: pip install matplotlib" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_density_is_a_sum_of_gaussians_on_a_torus():
    x, y, width, bins = np.array([-178.5, 30.0]), np.array([91.5, -178.5]), 12.0, 120
    found = density(x, y, width, bins)
    assert found.sum() * 9 == pytest.approx(1.0)
    centres = -178.5 + 3 * np.arange(bins)

    def around(centre):
        images = centres[:, None] - centre + 360 * np.arange(-2, 3)
        return np.exp(-0.5 * (images / width) ** 2).sum(1)

    middle = [3 * np.floor(v / 3) + 1.5 for v in (x, y)]  # of the bins
    expected = sum(np.outer(around(a), around(b)) for a, b in zip(*middle, strict=True))
    assert found == pytest.approx(expected / (2 * 2 * np.pi * width**2), abs=1e-9)


def test_a_path_is_cut_where_it_passes_180_degrees():
    x, y = path(np.array([170.0, -175.0, -170.0, -160.0]), np.array([0.0, 5.0, 170.0, -170.0]))
    assert np.isnan(x).tolist() == np.isnan(y).tolist() == [False, True, False, False, True, False]
    assert x[[0, 2, 3, 5]].tolist() == [170.0, -175.0, -170.0, -160.0]


def test_complete_frames_are_read_as_written(tmp_path):
    from torchmdx.dynamics.trajectory import Trajectory, TrajectoryFrame

    positions = np.random.default_rng(0).normal(size=(3, 5, 3))
    file = tmp_path / "a.dcd"
    trajectory = Trajectory.create(file, 5, 10, False, 2.0)
    for frame in positions:
        trajectory.append(TrajectoryFrame(frame, None))
    trajectory.close()
    assert read_frames(file, 5) == pytest.approx(positions, abs=1e-6)
    file.write_bytes(file.read_bytes()[:-7])  # as a kill may leave it
    assert read_frames(file, 5) == pytest.approx(positions[:2], abs=1e-6)
