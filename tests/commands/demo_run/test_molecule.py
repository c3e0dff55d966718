"""The molecule of the demo: names of its atoms, and its PDB file with other positions."""

import ase.io
import numpy as np
import pytest
from ase import Atoms

from torchmdx.commands.demo_run.molecule import DemoMolecule
from torchmdx.commands.demo_run.pictures import PHI, PSI
from torchmdx.report.view.torsions import torsion


@pytest.fixture
def molecule(tmp_path):
    return DemoMolecule(tmp_path / "start.pdb")


def test_labels(molecule):
    labels = molecule.labels()
    assert labels[:2] == ["ACE 1 H1", "ACE 1 CH3"]
    assert labels[8] == "ALA 2 CA"
    assert len(labels) == len(set(labels)) == 22


def test_torsions_match_ase(molecule):
    generator = np.random.default_rng(3)
    frames = molecule.atoms.positions + generator.normal(0, 0.4, (20, 22, 3))
    for names in (PHI, PSI):
        atoms = molecule.atoms_named(names)
        expected = [Atoms("H22", frame).get_dihedral(*atoms) for frame in frames]
        assert torsion(frames, atoms) == pytest.approx((np.array(expected) + 180) % 360 - 180, abs=1e-8)
    assert molecule.atoms_named(PHI) == (4, 6, 8, 14)
    assert molecule.atoms_named(PSI) == (6, 8, 14, 16)


def test_other_positions_are_written_into_the_same_file(molecule, tmp_path):
    positions = np.random.default_rng(1).normal(0, 30, (22, 3))
    molecule.write(tmp_path / "final.pdb", positions)
    start, final = ((tmp_path / name).read_text().splitlines() for name in ("start.pdb", "final.pdb"))
    assert [line[:30] + line[54:] for line in final] == [line[:30] + line[54:] for line in start]
    found = ase.io.read(tmp_path / "final.pdb")
    assert found.positions == pytest.approx(positions, abs=5.1e-4)
    assert found.numbers.tolist() == molecule.atoms.numbers.tolist()
