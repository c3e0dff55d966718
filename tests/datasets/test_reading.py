"""How files are read: impossible combinations, and units by format."""

import numpy as np
import pytest

from torchmdx.datasets.blocks import Keys
from torchmdx.datasets.reading import ReadingOptions


def test_units_of_the_format_are_the_default():
    assert ReadingOptions().units("ase").names()["force"] == "eV/angstrom"
    assert ReadingOptions().units("spice").names()["force"] == "hartree/bohr"
    assert ReadingOptions(length_unit="nm", stress_unit="GPa").units("spice").names() == {
        "energy": "hartree",
        "length": "nm",
        "force": "hartree/nm",
        "stress": "GPa",
    }


def test_a_virial_has_no_stress_unit():
    with pytest.raises(ValueError, match="a virial is in the energy unit: .* must not be given, got 'GPa'"):
        ReadingOptions(keys=Keys(virial="v"), stress_unit="GPa")


def test_formats_are_found_or_given(tmp_path):
    np.savez(tmp_path / "a.npz", R=np.zeros((1, 1, 3)))
    assert ReadingOptions().formats([tmp_path / "a.npz"]) == ["npz"]
    assert ReadingOptions(format="ase").formats([tmp_path / "a.npz"]) == ["ase"]
    with pytest.raises(FileNotFoundError, match="no data at .*b.npz"):
        ReadingOptions(format="npz").formats([tmp_path / "b.npz"])
    with pytest.raises(ValueError, match="energy unit must be one of eV"):
        ReadingOptions(energy_unit="ev").formats([tmp_path / "a.npz"])
