"""`torchmdx export`: what it writes and prints, and what it refuses."""

import pytest

from torchmdx import save
from torchmdx.cli import main
from torchmdx.models.priors.coulomb import CoulombConfig


@pytest.mark.nightly
def test_a_file_is_written_and_kept(make_potential, tmp_path, capsys):
    save(make_potential(num_layers=0), tmp_path / "model.safetensors")
    words = ["export", str(tmp_path / "model.safetensors"), "-o", str(tmp_path / "model.pt2"), "--dtype", "float64"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert f"wrote {tmp_path / 'model.pt2'}: " in said
    assert "for cpu, float64, cutoff 4.0 Å; largest relative error against the exact model " in said
    assert main(words) == 2
    assert "--overwrite" in capsys.readouterr().err


def test_bad_input(make_potential, tmp_path, capsys):
    (tmp_path / "there.pt2").write_bytes(b"mine")
    assert main(["export", "organic-1", "-o", str(tmp_path / "there.pt2")]) == 2
    assert "output files must not exist, got" in capsys.readouterr().err
    assert (tmp_path / "there.pt2").read_bytes() == b"mine"
    assert main(["export", "organic-1", "-o", str(tmp_path / "model.so")]) == 2
    assert "the file of an exported potential must end in .pt2, got" in capsys.readouterr().err
    assert main(["export", "none.safetensors", "-o", str(tmp_path / "a.pt2")]) == 2
    assert "none.safetensors" in capsys.readouterr().err
    given = make_potential(priors=[lambda: CoulombConfig(charges="given")])
    save(given, tmp_path / "charges.safetensors")
    assert main(["export", str(tmp_path / "charges.safetensors"), "-o", str(tmp_path / "a.pt2")]) == 2
    assert "only the priors zbl and d2 can be exported, got the prior coulomb" in capsys.readouterr().err
    assert not (tmp_path / "a.pt2").exists()
