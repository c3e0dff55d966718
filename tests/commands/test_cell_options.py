"""How the cell of one structure may move."""

import ase.build
import ase.io
import numpy as np
import pytest

import torchmdx
from torchmdx.commands import cli
from torchmdx.models.priors.zbl import ZBLConfig


@pytest.fixture
def relax(make_potential, tmp_path, monkeypatch):
    """Runs the command on a crystal under pressure; returns status, cell before and cell after."""
    monkeypatch.chdir(tmp_path)
    potential = make_potential(priors=[ZBLConfig])
    potential.scale.fill_(0)
    torchmdx.save(potential, "model.safetensors")

    def run(*options, pbc=True):
        atoms = ase.build.bulk("C", "diamond", a=3.2, cubic=True)
        atoms.rattle(0.03, seed=1)
        atoms.pbc = pbc
        ase.io.write("in.xyz", atoms)
        command = ["relax", "in.xyz", "-o", "out.xyz", "--model", "model.safetensors", "--device", "cpu", "--no-page"]
        status = cli.main([*command, "--overwrite", "--fmax", "0.1", "--cell", *options])
        after = ase.io.read("out.xyz") if status in (0, 1) else atoms
        return status, atoms.cell.array, after.cell.array

    return run


@pytest.mark.parametrize("index", ["-1", ":"])
def test_a_slab_keeps_the_vector_that_is_not_periodic(relax, index):
    status, before, after = relax("--index", index, pbc=(True, True, False))
    assert status == 0
    np.testing.assert_allclose(after[2], before[2], rtol=0, atol=1e-12)
    assert np.abs(after[:2] - before[:2]).max() > 1e-3


@pytest.mark.nightly_for("-1")
@pytest.mark.parametrize("index", ["-1", ":"])
def test_limits(relax, index):
    more = ["--index", index, "--pressure", "600kbar"]
    status, before, after = relax(*more, "--cell-mask", "xx,xy")
    assert status == 0
    assert np.abs(after[2] - before[2]).max() < 1e-8
    assert abs(after[0, 0] - before[0, 0]) > 1e-3
    _, before, after = relax(*more, "--hydrostatic")
    np.testing.assert_allclose(after, before * after[0, 0] / before[0, 0], atol=1e-6)
    _, before, after = relax(*more, "--constant-volume")
    assert np.linalg.det(after) == pytest.approx(np.linalg.det(before), rel=1e-6)
    _, before, after = relax(*more, "--fixed-vectors", "b")
    np.testing.assert_allclose(after[1], before[1], atol=1e-8)


def test_refused(relax, capsys):
    assert cli.main(["relax", "in.xyz", "-o", "o.xyz", "--hydrostatic"]) == 2
    assert "--hydrostatic needs --cell" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        relax("--cell-mask", "xx,zx")
    assert "must be some of xx,yy,zz,yz,xz,xy, got 'xx,zx'" in capsys.readouterr().err
