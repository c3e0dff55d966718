"""`torchmdx export`: what it refuses; tests/checkpoints/export/test_package.py runs it."""

from torchmdx import save
from torchmdx.commands.cli import main
from torchmdx.models.priors.coulomb import CoulombConfig


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
