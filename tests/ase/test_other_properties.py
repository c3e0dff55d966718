"""Properties that ASE has no names for, as the calculator gives them; tests/evaluation/properties has their values."""

import numpy as np
import pytest
from ase import Atoms
from ase.constraints import FixAtoms
from ase.vibrations import Vibrations, VibrationsData

from torchmdx import Calculator


def test_chosen_atoms_give_a_part_of_it(make_potential, ethanol):
    calculator = Calculator(make_potential(), dtype="float64", device="cpu")
    whole = calculator.get_hessian(ethanol).reshape(9, 3, 9, 3)
    for indices in ([2, 0], np.array([False, True] + [False] * 7), [-1]):
        kept = np.arange(9)[indices]
        part = calculator.get_hessian(ethanol, indices)
        np.testing.assert_allclose(part, whole[kept][:, :, kept].reshape(part.shape), atol=1e-12)
    assert calculator.get_hessian(ethanol, []).shape == (0, 0)
    with pytest.raises(IndexError, match="out of bounds"):
        calculator.get_hessian(ethanol, [9])


def test_vibrations_are_those_of_finite_differences(make_potential, cation, tmp_path):
    cation.calc = Calculator(make_potential(), dtype="float64", device="cpu")
    cation.set_constraint(FixAtoms([0]))
    moving = [1, 2, 3, 4]
    data = VibrationsData.from_2d(cation, cation.calc.get_hessian(cation, moving), indices=moving)
    reference = Vibrations(cation, indices=moving, name=str(tmp_path / "vibrations"), delta=1e-3, nfree=4)
    reference.run()
    expected = reference.get_energies()
    assert len(expected) == 12
    np.testing.assert_allclose(data.get_energies() ** 2, expected**2, atol=1e-5 * np.abs(expected**2).max())


def test_organic_1_gives_the_wavenumbers_of_water():
    water = Atoms("OH2", [[0, 0, 0], [0.757, 0.587, 0], [-0.757, 0.587, 0]])
    water.calc = Calculator(dtype="float64", device="cpu")
    data = VibrationsData.from_2d(water, water.calc.get_hessian(water))
    bend, *stretches = data.get_frequencies().real[-3:]
    assert 1400 < bend < 1750  # measured: 1595, 3657 and 3756 1/cm, without anharmonicity 1649, 3832 and 3943
    assert all(3500 < stretch < 4200 for stretch in stretches)
