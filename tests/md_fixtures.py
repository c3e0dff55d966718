"""A fast potential, structure files, and completed runs, each in the directory of the test."""

import ase.io
import pytest
from ase.build import bulk
from md_runs import DYNAMICS, TINY, md

import torchmdx


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def model(make_potential, folder) -> str:
    torchmdx.save(make_potential(**TINY), "model.safetensors")
    return "model.safetensors"


@pytest.fixture
def ethanol_file(ethanol, folder) -> str:
    ase.io.write("ethanol.xyz", ethanol, format="extxyz")
    return "ethanol.xyz"


@pytest.fixture
def salt_file(folder) -> str:
    atoms = bulk("NaCl", "rocksalt", a=5.64, cubic=True) * (2, 1, 1)
    atoms.rattle(0.05, seed=3)
    ase.io.write("salt.xyz", atoms, format="extxyz")
    return "salt.xyz"


@pytest.fixture
def unplotted(monkeypatch):
    """Skips the plot and the page, which saves half a second per run."""
    monkeypatch.setattr("torchmdx.dynamics.run.stages.plot_log", lambda *arguments: None)
    monkeypatch.setattr("torchmdx.dynamics.run.stages.write_run_page", lambda *arguments, **settings: False)


@pytest.fixture
def done(model, ethanol_file, unplotted) -> list:
    """Options of a completed run."""
    options = [ethanol_file, model, "run", "--ensemble", "nvt", *DYNAMICS, "--steps", 8]
    assert md(*options) == 0
    return options
