"""`torchmdx demo`, with a small potential of random weights: its files, its duration, and its analysis functions."""

import signal

import ase.io
import numpy as np
import pytest
from ase import Atoms

from torchmdx import cli
from torchmdx.demo import run as demo
from torchmdx.demo.torsions import PHI, PSI, density, path
from torchmdx.dynamics.log import read_log
from torchmdx.dynamics.trajectory import read_frames
from torchmdx.md.structure import read
from torchmdx.view.torsions import torsion


@pytest.fixture
def dipeptide(data):
    return read(str(data / "alanine_dipeptide.pdb"))


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
    record = demo.Trajectory.write

    def write_and_stop(self, positions, cell):
        record(self, positions, cell)
        if self.num_frames == 4:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(demo.Trajectory, "write", write_and_stop)
    assert cli.main([*command, "--seconds", "2"]) == 128 + signal.SIGTERM
    assert len(read_frames(tmp_path / "out" / "alanine_dipeptide.dcd", 22)) == 4
    assert (tmp_path / "out" / "ramachandran.png").is_file()


@pytest.mark.parametrize(("seconds_a_step", "frames"), [(0.01, 5), (0.001, 45), (0.0005, 90)])
def test_the_demo_takes_its_time_on_a_machine_that_changes_its_speed(
    command, tmp_path, monkeypatch, seconds_a_step, frames
):
    """A step of equilibration takes 0.001 s. Of half a second, 0.05 s are equilibration."""
    step = demo.Simulation.step
    clock = [0.0]
    monkeypatch.setattr(demo.time, "perf_counter", lambda: clock[0])

    def timed(self, num_steps):
        step(self, num_steps)
        writing = (tmp_path / "out" / "alanine_dipeptide.dcd").exists()
        clock[0] += num_steps * (seconds_a_step if writing else 0.001)

    monkeypatch.setattr(demo.Simulation, "step", timed)
    assert cli.main(command) == 0
    assert len(read_frames(tmp_path / "out" / "alanine_dipeptide.dcd", 22)) - 1 == pytest.approx(frames, abs=1)


@pytest.mark.parametrize("option", [["--seconds", "0"], ["--seconds", "nan"], ["--temperature", "-3"]])
def test_values_out_of_range_are_rejected_before_anything_is_written(command, tmp_path, option, capsys):
    assert cli.main([*command, *option]) == 2
    assert f"{option[0]} must be" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_without_openmm_the_demo_raises_with_install_command(command, monkeypatch, capsys):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "openmm" else find(name, *rest)
    )
    assert cli.main(command) == 2
    assert "the demo needs openmm, which is not installed: pip install 'torchmdx[openmm]'" in capsys.readouterr().err


def test_torsions_match_ase(dipeptide):
    generator = np.random.default_rng(3)
    frames = dipeptide.positions + generator.normal(0, 0.4, (20, 22, 3))
    for names in (PHI, PSI):
        atoms = demo.atoms_named(dipeptide, names)
        expected = [Atoms("H22", frame).get_dihedral(*atoms) for frame in frames]
        assert torsion(frames, atoms) == pytest.approx((np.array(expected) + 180) % 360 - 180, abs=1e-8)
    assert demo.atoms_named(dipeptide, PHI) == (4, 6, 8, 14)
    assert demo.atoms_named(dipeptide, PSI) == (6, 8, 14, 16)


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
    from torchmdx.dynamics.trajectory import Trajectory

    positions = np.random.default_rng(0).normal(size=(3, 5, 3))
    file = tmp_path / "a.dcd"
    trajectory = Trajectory.create(file, 5, 10, False, 2.0)
    for frame in positions:
        trajectory.write(frame, None)
    trajectory.close()
    assert read_frames(file, 5) == pytest.approx(positions, abs=1e-6)
    file.write_bytes(file.read_bytes()[:-7])  # as a kill may leave it
    assert read_frames(file, 5) == pytest.approx(positions[:2], abs=1e-6)
