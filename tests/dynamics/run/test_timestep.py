"""Timesteps that are too long for hydrogens."""

import dataclasses

import ase.io
import numpy as np
import pytest
from md_runs import md

pytest.importorskip("openmm", reason="needs OpenMM: pip install 'torchmdx[openmm]'")

from torchmdx.commands.md_openmm.structure import read
from torchmdx.dynamics.run.timestep import doubt_about_timestep


def test_hydrogens_limit_the_timestep(ethanol_file):
    structure = read(ethanol_file)
    assert doubt_about_timestep(structure, 1.0) is None
    assert "3 fs is too long for hydrogens of 1.008 amu" in doubt_about_timestep(structure, 3.0)
    said = "--timestep should be at most 1.25, or 1.7 times that with --hydrogen-mass 3"
    assert said in doubt_about_timestep(structure, 3.0)
    heavy = dataclasses.replace(structure, masses=np.where(structure.atomic_numbers == 1, 4.032, structure.masses))
    assert doubt_about_timestep(heavy, 2.4) is None
    assert doubt_about_timestep(heavy, 2.6).endswith("at most 2.50")
    still = dataclasses.replace(structure, fixed=structure.atomic_numbers == 1)
    assert doubt_about_timestep(still, 5.0) is None
    assert doubt_about_timestep(structure, 0.5, 4) is None
    assert "an outer step of 5 x 0.5 fs is too long" in doubt_about_timestep(structure, 0.5, 5)
    assert doubt_about_timestep(heavy, 1.0, 4) is None
    assert doubt_about_timestep(heavy, 1.0, 5).endswith("outer steps should be at most 4.01 fs")
    salt = ase.io.read(ethanol_file)[:2]
    ase.io.write("carbon.xyz", salt, format="extxyz")
    assert doubt_about_timestep(read("carbon.xyz"), 5.0) is None


@pytest.mark.filterwarnings("always")
def test_a_run_warns_before_it_begins(capsys, model, ethanol_file, unplotted):
    assert md(ethanol_file, model, "run", "--steps", 1, "--timestep", 3) == 0
    assert "torchmdx: warning: a timestep of 3 fs is too long for hydrogens of 1.008 amu" in capsys.readouterr().err
