"""A potential whose charges interact with those around: energies, and forces by differences, in both precisions."""

import numpy as np
import pytest
import torch
from foreign_state import STATES

from torchmdx import Calculator, System
from torchmdx.openmm.embedded_region import EmbeddedRegion
from torchmdx.openmm.surroundings import Surroundings
from torchmdx.step.results import NonFiniteError
from torchmdx.structures.units import COULOMB

RNG = np.random.default_rng(2)
CHARGES = tuple(RNG.normal(0, 0.5, 5))
AROUND = RNG.normal(size=(5, 3)) * 2 + [6.0, 1.0, -2.0]
PLAIN = Surroundings("plain", CHARGES)


@pytest.fixture
def charged(make_potential):
    return make_potential(model="tensornet2", num_channels=8, num_layers=1)


def structure(atoms, charge=0.0):
    return System.from_ase(atoms, charge)


def test_energy_is_the_potentials_and_that_of_its_charges(charged, ethanol):
    ethanol.calc = Calculator(charged, dtype="float64", device="cpu", charge=1)
    charges = ethanol.calc.get_property("charges", ethanol)
    distances = np.linalg.norm(ethanol.positions[:, None] - AROUND, axis=-1)
    coulomb = COULOMB * (charges[:, None] * np.array(CHARGES) / distances).sum()
    assert abs(coulomb) > 1e-3
    region = EmbeddedRegion(charged, PLAIN)
    energy, forces = region.evaluate(structure(ethanol, 1), AROUND, None, True)
    assert energy == pytest.approx(ethanol.get_potential_energy() + coulomb, rel=1e-10)
    alone, none = region.evaluate(structure(ethanol, 1), AROUND, None, False)
    assert alone == pytest.approx(energy, rel=1e-12)
    assert none.shape == forces.shape == (14, 3)
    assert not none.any()
    np.testing.assert_allclose(forces.sum(0), 0, atol=1e-9)


def test_forces_are_slopes(charged, ethanol):
    region, step = EmbeddedRegion(charged, PLAIN), 1e-5
    forces = region.evaluate(structure(ethanol), AROUND, None, True)[1]
    for row, axis in ((0, 0), (3, 1), (8, 2), (9, 0), (13, 1)):
        ends = []
        for sign in (1, -1):
            moved, around = ethanol.copy(), AROUND.copy()
            (moved.positions if row < 9 else around)[row if row < 9 else row - 9, axis] += sign * step
            ends.append(region.evaluate(structure(moved), around, None, False)[0])
        assert (ends[1] - ends[0]) / (2 * step) == pytest.approx(forces[row, axis], abs=1e-6)


def test_single_precision(make_potential, ethanol):
    settings = dict(model="tensornet2", num_channels=8, num_layers=1)
    exact, single = (make_potential(dtype, **settings) for dtype in (torch.float64, torch.float32))
    found = [EmbeddedRegion(each, PLAIN).evaluate(structure(ethanol), AROUND, None, True) for each in (exact, single)]
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-5)
    np.testing.assert_allclose(found[1][1], found[0][1], atol=1e-4 * np.abs(found[0][1]).max())


@pytest.mark.parametrize("state", [name for name in STATES if "GPU" not in name])
def test_results_do_not_depend_on_the_state_of_the_process(make_potential, ethanol, state):
    region, given = EmbeddedRegion(make_potential(torch.float32, model="tensornet2"), PLAIN), structure(ethanol)
    energy, forces = region.evaluate(given, AROUND, None, True)
    with STATES[state]():
        found, others = region.evaluate(structure(ethanol), AROUND, None, True)
    assert found == pytest.approx(energy, abs=1e-6)
    np.testing.assert_allclose(others, forces, atol=1e-5)


def test_weights_and_positions_are_not_touched(charged, ethanol):
    given, around = structure(ethanol), AROUND.copy()
    before = given.positions.clone()
    EmbeddedRegion(charged, PLAIN).evaluate(given, around, None, True)
    assert torch.equal(given.positions, before)
    assert not given.positions.requires_grad
    np.testing.assert_array_equal(around, AROUND)
    assert all(parameter.grad is None for parameter in charged.parameters())


def test_errors(charged, potential, ethanol):
    with pytest.raises(ValueError, match="needs a potential that predicts charges, such as a TensorNet2"):
        EmbeddedRegion(potential, PLAIN)
    region = EmbeddedRegion(charged, PLAIN)
    with pytest.raises(NonFiniteError, match="positions around an embedded region must be finite"):
        region.evaluate(structure(ethanol), AROUND * np.nan, None, True)
    with pytest.raises(NonFiniteError, match="energy and forces of an embedded region must be finite"):
        region.evaluate(structure(ethanol), np.vstack([ethanol.positions[:1], AROUND[1:]]), None, True)
