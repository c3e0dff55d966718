"""The Hessian against finite differences of forces, which use none of its code."""

import copy
import importlib

import numpy as np
import pytest
import torch
from ase import Atoms
from model_kinds import FEW, KINDS, coulomb, kinds, zbl
from outside_model import Outside, OutsideConfig

from torchmdx import Batch, Calculator, Ensemble, Potential, System, evaluate, register_model
from torchmdx.engines.cpu.build import tensornet_library
from torchmdx.evaluation.properties.hessian import hessian
from torchmdx.evaluation.properties.pairs import Pairs

properties = importlib.import_module(hessian.__module__)
STEP = 1e-4  # Å; the error of the differences is about STEP² times the fourth derivative


def by_differences(potential: Potential | Ensemble, atoms: Atoms, charge: float | None = None) -> np.ndarray:
    """[3N,3N] eV/Å², by central differences of the forces of `evaluate`."""
    systems = []
    for index in np.ndindex(atoms.positions.shape):
        for sign in (1, -1):
            moved = atoms.copy()
            moved.positions[index] += sign * STEP
            systems.append(System.from_ase(moved, charge))
    forces = evaluate(potential, Batch.of(systems)).forces.numpy().reshape(3 * len(atoms), 2, 3 * len(atoms))
    return (forces[:, 1] - forces[:, 0]) / (2 * STEP)


def assert_second_derivatives(potential, atoms, tolerance=2e-5):
    found, expected = hessian(potential, System.from_ase(atoms)).numpy(), by_differences(potential, atoms)
    assert np.abs(expected).max() > 1e-2
    np.testing.assert_allclose(found, expected, atol=tolerance * np.abs(expected).max())
    np.testing.assert_array_equal(found, found.T)


@pytest.mark.nightly_for("cation")
@pytest.mark.parametrize("kind", kinds(*FEW))
@pytest.mark.parametrize("name", ["cation", "crystal"])
def test_it_is_the_derivative_of_the_forces(make_kind, request, kind, name):
    assert_second_derivatives(make_kind(kind), request.getfixturevalue(name))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", kinds(*sorted(set(KINDS) - set(FEW))))
def test_it_is_the_derivative_of_the_forces_for_every_kind(make_kind, slab, kind):
    assert_second_derivatives(make_kind(kind), slab)


def test_a_registered_model_has_one(ethanol):
    register_model("outside", OutsideConfig, Outside)
    torch.manual_seed(1)
    assert_second_derivatives(Potential(OutsideConfig()).double(), ethanol)


def test_that_of_an_ensemble_is_of_the_mean_energy(make_potential, crystal):
    members = [make_potential(seed=seed) for seed in (1, 2)]
    assert_second_derivatives(Ensemble(members), crystal)


def test_translations_cost_nothing(make_potential, crystal):
    found = hessian(make_potential(), System.from_ase(crystal)).numpy().reshape(3, 3, 3, 3)
    assert np.abs(found).max() > 0.1
    np.testing.assert_allclose(found.sum(axis=2), 0, atol=1e-7 * np.abs(found).max())


def test_an_atom_alone_has_none(make_potential):
    np.testing.assert_array_equal(hessian(make_potential(), System.from_ase(Atoms("H"))), np.zeros((3, 3)))


@pytest.mark.parametrize("kind", kinds(*FEW, "qet"))
def test_an_empty_structure_has_an_empty_one(make_kind, kind):
    found = Calculator(make_kind(kind), dtype="float64", device="cpu").get_hessian(Atoms())
    assert found.shape == (0, 0)
    assert found.dtype == np.float64


@pytest.mark.nightly
def test_inference_mode_and_disabled_gradients_do_not_matter(make_potential, crystal):
    potential, system = make_potential(), System.from_ase(crystal)
    expected = hessian(potential, system)
    with torch.inference_mode():
        torch.testing.assert_close(hessian(potential, system), expected, rtol=0, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(hessian(potential, system), expected, rtol=0, atol=0)
    assert not expected.requires_grad


def test_the_calculator_gives_that_of_its_structure_and_charge(make_potential, cation):
    potential = make_potential()
    calculator = Calculator(potential, dtype="float64", device="cpu")
    with pytest.raises(ValueError, match="atoms must be given before the first calculation, got None"):
        calculator.get_hessian()
    cation.calc = calculator
    cation.get_potential_energy()
    expected = by_differences(potential, cation)
    np.testing.assert_allclose(calculator.get_hessian(), expected, atol=1e-4)
    neutral = Calculator(potential, dtype="float64", device="cpu", charge=0).get_hessian(cation)
    np.testing.assert_allclose(neutral, by_differences(potential, cation, 0), atol=1e-4)
    assert np.abs(neutral - expected).max() > 1e-3
    low = Calculator(potential, dtype="float32", device="cpu").get_hessian(cation)
    assert low.dtype == np.float64
    np.testing.assert_allclose(low, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.skipif(tensornet_library(torch.float64) is None, reason="needs a C compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_on_a_cpu_it_is_found_by_differences_of_forces(make_potential, make_kind, crystal, dtype, monkeypatch):
    """In any batches; but not with priors whose forces have a step at a cutoff."""
    potential, system = make_potential(dtype, priors=[zbl]), System.from_ase(crystal)
    wide = copy.deepcopy(potential).double()
    exact = wide, Pairs.of(wide, system), torch.arange(9)
    analytic = properties._rows(*exact)

    def refuse(*args):
        raise AssertionError("no derivatives of the exact model were expected")

    monkeypatch.setattr(properties, "_rows", refuse)
    found = hessian(potential, system)
    assert float((found - analytic).abs().max()) < 1e-7 * float(analytic.abs().max())
    monkeypatch.setattr(properties, "MOST_ATOMS", 15)
    torch.testing.assert_close(hessian(potential, system), found, rtol=0, atol=1e-9 * float(found.abs().max()))
    for kind in ("coulomb", "coulomb-ewald", "d2"):
        with pytest.raises(AssertionError, match="no derivatives"):
            hessian(make_kind(kind), system)


def test_a_pair_at_the_cutoff_of_a_reaction_field_has_no_step(make_potential):
    """Its force there is not zero: a difference of forces divided by the step would be as stiff as a bond."""
    potential = make_potential(model="tensornet2", priors=[lambda: coulomb(dielectric=78.3)])
    found = []
    for distance in (5.99, 6 - 3e-5):
        atoms = Atoms("OH", [[0, 0, 0], [distance, 0, 0]], cell=[20, 20, 20], pbc=True)
        found.append(hessian(potential, System.from_ase(atoms)).numpy())
    assert np.abs(found[0]).max() > 0
    np.testing.assert_allclose(found[1], found[0], atol=0.02 * np.abs(found[0]).max())


@pytest.mark.gpu
@pytest.mark.parametrize("kind", kinds(*FEW))
def test_a_gpu_gives_the_same(make_kind, crystal, kind):
    potential, system = make_kind(kind), System.from_ase(crystal)
    expected = hessian(potential, system)  # of differences of forces, where the GPU differentiates twice
    found = hessian(potential.to("cuda"), system).cpu()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 * float(expected.abs().max()))
    potential.to("cpu")
