import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule

from torchmdx.report.view.bonds import molecules
from torchmdx.report.view.torsions import backbone, torsion

NOWHERE = np.zeros(3, dtype=bool)


@pytest.fixture
def dipeptide(data):
    return ase.io.read(data / "alanine_dipeptide.pdb")


def test_backbone_is_found_by_bonds_in_any_order_of_atoms(dipeptide):
    names = [
        f"{residue} {name}"
        for residue, name in zip(dipeptide.arrays["residuenames"], dipeptide.arrays["atomtypes"], strict=True)
    ]
    order = np.random.default_rng(2).permutation(len(dipeptide))
    for chosen in (np.arange(len(dipeptide)), order):
        atoms = dipeptide[chosen]
        (found,) = backbone(atoms.numbers, molecules(atoms.numbers, atoms.positions, None, NOWHERE).pairs)
        phi, psi = ([names[chosen[atom]].replace("  ", " ") for atom in part] for part in (found.phi, found.psi))
        assert phi == ["ACE C", "ALA N", "ALA CA", "ALA C"]
        assert psi == ["ALA N", "ALA CA", "ALA C", "NME N"]
        assert names[chosen[found.alpha_carbon]] == "ALA CA"


@pytest.mark.parametrize("name", ["CH3CONH2", "CH3CH2OH", "C5H5N", "HCOOCH3", "CH3CH2NH2"])
def test_molecules_that_are_no_peptide_have_no_residue(name):
    atoms = molecule(name)
    assert backbone(atoms.numbers, molecules(atoms.numbers, atoms.positions, None, NOWHERE).pairs) == []


def test_torsion_agrees_with_ase():
    frames = np.random.default_rng(0).normal(size=(20, 4, 3))
    expected = [Atoms("H4", frame).get_dihedral(0, 1, 2, 3) for frame in frames]
    found = torsion(frames, (0, 1, 2, 3))
    assert found == pytest.approx((np.array(expected) + 180) % 360 - 180)
