import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import make_supercell
from model_kinds import FEW, kinds
from outside_model import Outside, OutsideConfig
from scipy.spatial.transform import Rotation

from torchmdx import Calculator, Ensemble, Potential, System, register_model
from torchmdx.evaluation.properties.descriptors import descriptors

CHANNELS = 8


def calculator_of(potential) -> Calculator:
    return Calculator(potential, dtype="float64", device="cpu")


@pytest.mark.parametrize("kind", kinds("tensornet", "tensornet2"))
def test_the_head_turns_them_into_energies(make_kind, structure, kind):
    potential = make_kind(kind)
    structure.calc = calculator_of(potential)
    found = structure.calc.get_descriptors(structure)
    assert found.shape == (len(structure), CHANNELS)
    with torch.no_grad():
        outputs = potential.head(torch.as_tensor(found))
    constants = potential.reference_energies[structure.numbers] + potential.shift / len(structure)
    energies = (potential.scale * outputs + constants).numpy()
    np.testing.assert_allclose(energies, structure.get_potential_energies(), atol=1e-11)


@pytest.mark.parametrize("kind", kinds(*FEW))
def test_they_turn_with_nothing_and_follow_permutations(make_kind, chiral, kind):
    calculator = calculator_of(make_kind(kind))
    found = calculator.get_descriptors(chiral)
    assert np.ptp(found, axis=0).max() > 1e-3
    turned = chiral.copy()
    turned.positions = turned.positions @ Rotation.random(rng=1).as_matrix() + [3.0, -20.0, 1000.0]
    np.testing.assert_allclose(calculator.get_descriptors(turned), found, atol=1e-9)
    mirrored = chiral.copy()
    mirrored.positions[:, 0] *= -1
    np.testing.assert_allclose(calculator.get_descriptors(mirrored), found, atol=1e-9)
    order = [3, 0, 4, 1, 2]
    np.testing.assert_allclose(calculator.get_descriptors(chiral[order]), found[order], atol=1e-9)


def test_a_model_of_the_group_so3_tells_mirror_images_apart(make_kind, chiral):
    calculator = calculator_of(make_kind("tensornet-SO(3)"))
    mirrored = chiral.copy()
    mirrored.positions[:, 0] *= -1
    difference = calculator.get_descriptors(chiral) - calculator.get_descriptors(mirrored)
    assert np.abs(difference).max() > 1e-6


def test_an_atom_has_those_of_its_image_in_a_supercell(make_potential, crystal):
    calculator = calculator_of(make_potential())
    large = make_supercell(crystal, np.diag([2, 1, 2]))
    found, own = calculator.get_descriptors(large), calculator.get_descriptors(crystal)
    for symbol in "OCH":
        rows = found[large.symbols == symbol]
        np.testing.assert_allclose(rows, np.repeat(own[crystal.symbols == symbol], len(rows), axis=0), atol=1e-9)


def test_those_of_an_ensemble_follow_each_other(make_potential, ethanol):
    members = [make_potential(seed=seed) for seed in (1, 2)]
    found = calculator_of(Ensemble(members)).get_descriptors(ethanol)
    parts = [calculator_of(member).get_descriptors(ethanol) for member in members]
    np.testing.assert_allclose(found, np.hstack(parts), atol=1e-12)
    assert np.abs(parts[0] - parts[1]).max() > 1e-3


def test_a_registered_model_has_its_own(ethanol):
    register_model("outside", OutsideConfig, Outside)
    torch.manual_seed(1)
    potential = Potential(OutsideConfig()).double()
    found = descriptors(potential, System.from_ase(ethanol))
    ethanol.calc = calculator_of(potential)
    outputs = potential.head(found).detach().numpy() * float(potential.scale)
    np.testing.assert_allclose(outputs, ethanol.get_potential_energies(), atol=1e-11)


@pytest.mark.parametrize("kind", kinds(*FEW, "qet"))
def test_an_empty_structure_has_none(make_kind, chiral, kind):
    calculator = calculator_of(make_kind(kind))
    assert calculator.get_descriptors(Atoms()).shape == (0, calculator.get_descriptors(chiral).shape[1])


def test_they_are_those_of_the_last_calculation(make_potential, ethanol):
    calculator = calculator_of(make_potential())
    with pytest.raises(ValueError, match="atoms must be given before the first calculation, got None"):
        calculator.get_descriptors()
    calculator.get_potential_energy(ethanol)
    np.testing.assert_array_equal(calculator.get_descriptors(), calculator.get_descriptors(ethanol))
    low = Calculator(make_potential(), dtype="float32", device="cpu").get_descriptors(ethanol)
    assert low.dtype == np.float64
    np.testing.assert_allclose(low, calculator.get_descriptors(), rtol=1e-4, atol=1e-5)
