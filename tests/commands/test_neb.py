import ase.io
import pytest
from double_well import barrier, double_well, ends

import torchmdx
from torchmdx.commands import cli
from torchmdx.report.view.page import is_page


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torchmdx.save(double_well(), "morse.safetensors")
    for name, atoms in zip(("a.traj", "b.traj"), ends(False), strict=True):
        ase.io.write(name, atoms)
    return ["a.traj", "b.traj", "--model", "morse.safetensors", "--device", "cpu", "--dtype", "float64"]


def test_a_path_with_its_picture_and_page(files, tmp_path, capsys):
    pytest.importorskip("plotly")
    pytest.importorskip("matplotlib")
    command = ["neb", *files, "-o", "path.traj", "--images", "4", "--fmax", "0.01", "--refine"]
    assert cli.main([*command, "--picture", "path.svg"]) == 0
    out = capsys.readouterr().out
    assert f"barrier forward {barrier():.4f} eV, backward {barrier():.4f} eV" in out
    assert "wrote path.traj, path.svg, path.html" in out
    frames = ase.io.read("path.traj", ":")
    assert len(frames) == 7
    assert frames[6].info["transition_state"]
    assert frames[6].get_potential_energy() - frames[0].get_potential_energy() == pytest.approx(barrier(), abs=1e-3)
    assert frames[0].info["potential"]
    assert is_page(tmp_path / "path.html")
    assert "<svg" in (tmp_path / "path.svg").read_text()
    assert cli.main(command) == 2
    assert "path.traj" in capsys.readouterr().err
    assert cli.main([*command, "--overwrite", "--steps", "1", "--no-page"]) == 1
    assert "not converged to 0.01 eV/Å in 1 steps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["-o", "path.cif"], "--output must end in .traj, .xyz, .extxyz, got 'path.cif'"),
        (["-o", "none/p.traj"], "--output must be in an existing directory, got 'none/p.traj'"),
        (["-o", "p.traj", "--picture", "p.jpg"], "--picture must end in .png or .svg, got 'p.jpg'"),
        (["-o", "a.traj", "--overwrite"], "--output must not be the file of an end, got 'a.traj'"),
    ],
)
def test_outputs_that_cannot_be_written(files, capsys, more, said):
    assert cli.main(["neb", *files, *more]) == 2
    assert said in capsys.readouterr().err
