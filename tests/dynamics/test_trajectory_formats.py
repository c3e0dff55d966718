"""Formats of trajectories: names, and the topology that MDTraj stores."""

import json

import ase.io
import numpy as np
import pytest

from torchmdx.dynamics.trajectory_formats import AtomNames, TrajectoryFormat, topology_of


def test_formats_have_endings():
    assert TrajectoryFormat().ending == ".dcd"
    assert TrajectoryFormat("hdf5", velocities=True).ending == ".h5"
    with pytest.raises(ValueError, match="must be one of dcd, hdf5, got 'xtc'"):
        TrajectoryFormat("xtc")
    with pytest.raises(ValueError, match="velocities need a trajectory in the format 'hdf5', got 'dcd'"):
        TrajectoryFormat("dcd", velocities=True)


def test_hdf5_needs_its_package(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'torchmdx\[hdf5\]'"):
        TrajectoryFormat("hdf5")


def test_atoms_without_names_are_numbered_in_one_residue():
    (chain,) = json.loads(topology_of(np.array([6, 1, 8, 1])))["chains"]
    (residue,) = chain["residues"]
    assert [(atom["index"], atom["name"], atom["element"]) for atom in residue["atoms"]] == [
        (0, "C1", "C"), (1, "H1", "H"), (2, "O1", "O"), (3, "H2", "H"),
    ]  # fmt: skip


def test_names_and_residues_of_a_pdb_file(data):
    atoms = ase.io.read(data / "alanine_dipeptide.pdb")
    names = AtomNames.of_arrays(atoms.arrays)
    (chain,) = json.loads(topology_of(atoms.numbers, names))["chains"]
    assert [residue["name"] for residue in chain["residues"]] == ["ACE", "ALA", "NME"]
    found = [atom for residue in chain["residues"] for atom in residue["atoms"]]
    assert [atom["index"] for atom in found] == list(range(22))
    lines = [
        line for line in (data / "alanine_dipeptide.pdb").read_text().splitlines() if line.startswith(("ATOM", "HET"))
    ]
    assert [atom["name"] for atom in found] == [line[12:16].strip() for line in lines]
    assert AtomNames.of_arrays({"numbers": atoms.numbers}) is None
