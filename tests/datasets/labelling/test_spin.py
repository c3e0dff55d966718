"""Charge and multiplicity of methods that count electrons."""

import pytest
from ase import Atoms
from ase.build import molecule

from torchmdx.datasets.labelling.geometry import UnlabelledStructure
from torchmdx.datasets.labelling.spin import lowest_or_given, xtb_multiplicity


def test_spin_must_fit_the_electrons():
    water = UnlabelledStructure.from_ase(molecule("H2O"))
    assert xtb_multiplicity(water) == 1
    assert xtb_multiplicity(UnlabelledStructure.from_ase(molecule("H2O"), charge=1.0)) == 2
    assert xtb_multiplicity(UnlabelledStructure.from_ase(Atoms("Ce"))) == 2  # 3 valence electrons in GFN-xTB, 58 in all
    wrong = UnlabelledStructure.from_ase(molecule("H2O"), charge=-1.0, multiplicity=3)
    with pytest.raises(ValueError, match=r"must be 2, 4, \.\.\. with an odd number of electrons \(charge -1\), got 3"):
        xtb_multiplicity(wrong)
    with pytest.raises(ValueError, match=r"must be 1, 3, \.\.\. with an even number of electrons \(charge 0\), got 0"):
        xtb_multiplicity(UnlabelledStructure.from_ase(molecule("H2O"), multiplicity=0))
    with pytest.raises(ValueError, match="must be an integer for xTB, got 0.5"):
        xtb_multiplicity(UnlabelledStructure.from_ase(molecule("H2O"), charge=0.5))


def test_all_electrons_are_counted_where_the_method_has_them():
    cerium = UnlabelledStructure.from_ase(Atoms("Ce"))
    assert lowest_or_given(cerium, 58, "DFT") == 1
    with pytest.raises(ValueError, match="must be an integer for DFT, got 0.5"):
        lowest_or_given(UnlabelledStructure.from_ase(Atoms("Ce"), charge=0.5), 58, "DFT")
