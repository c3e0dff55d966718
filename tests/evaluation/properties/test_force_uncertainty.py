"""Uncertainties of forces: by finite differences of the formula's features, of every kind of network."""

import copy

import numpy as np
import pytest
import torch
from model_kinds import kinds
from uncertain import features_by_autograd, uncertain

import torchmdx
from torchmdx import Batch, Ensemble, System
from torchmdx.evaluation.properties import force_uncertainties

STEP = 1e-4


def expected(potential, atoms):
    """By central differences of f, and the inverse of the matrix; the factor of forces is 0.6 eV."""
    known = potential.uncertainty
    inverse = np.linalg.inv(known.covariance.numpy() + known.regulariser * np.eye(known.size))
    found = np.zeros(len(atoms))
    for atom in range(len(atoms)):
        for axis in range(3):
            both = []
            for sign in (1, -1):
                moved = atoms.copy()
                moved.positions[atom, axis] += sign * STEP
                both.append(features_by_autograd(potential, Batch.of(System.from_ase(moved))).sum(0))
            slope = (both[0] - both[1]) / (2 * STEP)
            found[atom] += 0.6**2 * slope @ inverse @ slope
    return np.sqrt(found)


@pytest.mark.nightly_for("zbl", "tensornet-gated")
@pytest.mark.parametrize("kind", kinds("tensornet", "tensornet-gated", "tensornet2", "zbl"))
def test_they_are_those_of_the_formula(kind, make_kind, ethanol):
    small = ethanol[:4]
    potential = uncertain(make_kind(kind), force_factor=0.6)
    found = force_uncertainties(potential, System.from_ase(small))
    np.testing.assert_allclose(found, expected(potential, small), rtol=1e-5)
    single = force_uncertainties(copy.deepcopy(uncertain(make_kind(kind))).float(), System.from_ase(small))
    np.testing.assert_allclose(single, found / 2, rtol=1e-4)  # by the factor of energies, 0.3 eV


def test_the_reference_network_gives_the_same(make_kind, ethanol, monkeypatch):
    from torchmdx.engines.plan import Network

    potential, system = uncertain(make_kind("tensornet")), System.from_ase(ethanol)
    fast = force_uncertainties(potential, system)
    monkeypatch.setattr(Network, "has_pairs", False)
    torch.testing.assert_close(force_uncertainties(potential, system), fast)


def test_crystals_single_atoms_and_none(make_kind, crystal):
    potential = uncertain(make_kind("tensornet"))
    one, eight = (force_uncertainties(potential, System.from_ase(atoms)) for atoms in (crystal, crystal * 2))
    # A force on an atom alone of eight differs from that on all images; both are finite and change with the cell.
    assert one.shape == (3,)
    assert bool((eight > 0).all())
    alone = System.create(np.zeros((1, 3)), [6])
    assert force_uncertainties(potential, alone).tolist() == [0.0]
    assert force_uncertainties(potential, System.create(np.zeros((0, 3)), [])).shape == (0,)


def test_the_calculator_has_them_and_refuses_ensembles(make_kind, make_potential, ethanol):
    potential = uncertain(make_kind("tensornet"))
    ethanol.calc = torchmdx.Calculator(potential, dtype="float64", device="cpu")
    found = ethanol.calc.get_forces_uncertainty(ethanol)
    np.testing.assert_allclose(found, force_uncertainties(potential, System.from_ase(ethanol)))
    several = torchmdx.Calculator(Ensemble([make_potential(seed=seed) for seed in (1, 2)]), device="cpu")
    with pytest.raises(ValueError, match="needs a single potential, got an ensemble: use forces_spread"):
        several.get_forces_uncertainty(ethanol)
    with pytest.raises(ValueError, match="need a potential that knows its uncertainty.*FILE DATA` adds it"):
        torchmdx.Calculator(make_kind("tensornet"), device="cpu").get_forces_uncertainty(ethanol)
