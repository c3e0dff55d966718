import ase.io
import numpy as np
import pytest
from ase.build import molecule

from torchmdx.commands import cli
from torchmdx.report.view.page import is_page

pytest.importorskip("plotly")


@pytest.fixture
def trajectory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frames = [molecule("CH3CH2OH") for _ in range(12)]
    for seed, atoms in enumerate(frames):
        atoms.rattle(0.05, seed=seed)
    ase.io.write("run.traj", frames)
    return "run.traj"


def test_view_writes_a_page_beside_the_file(trajectory, tmp_path, capsys):
    assert cli.main(["view", trajectory, "--index", "::2", "--title", "Ethanol"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "wrote run.html: 6 frames of 9 atoms"
    assert "superimposed" in out
    assert is_page(tmp_path / "run.html")
    assert "<title>Ethanol</title>" in (tmp_path / "run.html").read_text()


def test_only_pages_are_replaced_without_asking(trajectory, tmp_path, capsys):
    page = tmp_path / "p.html"
    page.write_text("mine")
    assert cli.main(["view", trajectory, "-o", str(page)]) == 2
    assert "exists and is not a page of torchmdx: use --overwrite, or -o" in capsys.readouterr().err
    assert page.read_text() == "mine"
    assert cli.main(["view", trajectory, "-o", str(page), "--overwrite"]) == 0
    before = page.stat().st_size
    assert cli.main(["view", trajectory, "-o", str(page), "--index", "-1"]) == 0
    assert page.stat().st_size < before


def test_the_file_itself_is_never_replaced(trajectory, capsys):
    frames = ase.io.read(trajectory, ":")
    ase.io.write("frames.html", frames, format="extxyz")
    assert cli.main(["view", "frames.html", "--overwrite"]) == 2
    assert "the page must be another file than the structures" in capsys.readouterr().err
    assert np.isfinite(ase.io.read("frames.html", format="extxyz").positions).all()


def test_a_missing_file(tmp_path, capsys):
    assert cli.main(["view", str(tmp_path / "none.xyz")]) == 2
    assert "no structure file at" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("output", "said"),
    [("none/p.html", "--output must be in an existing directory"), (".", "--output must be a file, got the directory")],
)
def test_an_output_that_cannot_be_a_file(trajectory, capsys, output, said):
    assert cli.main(["view", trajectory, "-o", output]) == 2
    assert said in capsys.readouterr().err


def test_times_between_frames_give_averages(trajectory, tmp_path, capsys):
    frames = ase.io.read(trajectory, ":") * 2
    for seed, atoms in enumerate(frames):
        atoms.set_velocities(np.random.default_rng(seed).normal(size=(len(atoms), 3)))
    ase.io.write("timed.traj", frames)
    assert cli.main(["view", "timed.traj", "--frame-time", "2"]) == 0
    assert '"title":"spectrum of velocities"' in (tmp_path / "timed.html").read_text()
    assert cli.main(["view", "timed.traj", "--frame-time", "0"]) == 2
    assert "--frame-time must be > 0 fs, got 0.0" in capsys.readouterr().err
    assert cli.main(["view", "run.dcd", "--frame-time", "1"]) == 2
    assert "--frame-time applies to files without times, got it with 'run.dcd'" in capsys.readouterr().err
