"""A potential whose charges interact with those around: energies, and forces by differences, in both precisions."""

import numpy as np
import pytest
import torch
from foreign_state import STATES

from torchmdx import Calculator, System
from torchmdx.openmm.embedded_region import EmbeddedStep
from torchmdx.openmm.evaluator import ForceEvaluator
from torchmdx.openmm.settings import ForceSettings
from torchmdx.openmm.surroundings import Surroundings
from torchmdx.openmm.surroundings_lattice import MARGIN
from torchmdx.step.results import NonFiniteError
from torchmdx.structures.units import COULOMB

RNG = np.random.default_rng(2)
CHARGES = tuple(RNG.normal(0, 0.5, 5))
AROUND = RNG.normal(size=(5, 3)) * 2 + [6.0, 1.0, -2.0]
PLAIN = Surroundings("plain", CHARGES)
LATTICE = Surroundings("lattice", CHARGES, True)
BOX = np.array([[14.0, 0, 0], [1.0, 15.0, 0], [-2.0, 3.0, 13.0]])


@pytest.fixture
def charged(make_potential):
    return make_potential(model="tensornet2", num_channels=8, num_layers=1)


def evaluator(potential, surroundings=PLAIN, charge=0.0):
    precision = str(potential.dtype).removeprefix("torch.")
    atoms, periodic = tuple(range(9)), surroundings.periodic
    numbers = (6, 6, 8, 1, 1, 1, 1, 1, 1)
    return ForceEvaluator(
        ForceSettings(
            numbers, atoms, 14, charge, periodic, precision, "auto", "cpu", 0.0, 0, None, surroundings=surroundings
        ),
        potential,
    )


def placed(atoms, around=AROUND):
    assert atoms.numbers.tolist() == [6, 6, 8, 1, 1, 1, 1, 1, 1]
    return np.concatenate([atoms.positions, around])


def test_energy_is_the_potentials_and_that_of_its_charges(charged, ethanol):
    ethanol.calc = Calculator(charged, dtype="float64", device="cpu", charge=1)
    charges = ethanol.calc.get_property("charges", ethanol)
    distances = np.linalg.norm(ethanol.positions[:, None] - AROUND, axis=-1)
    coulomb = COULOMB * (charges[:, None] * np.array(CHARGES) / distances).sum()
    assert abs(coulomb) > 1e-3
    region = evaluator(charged, charge=1.0)
    energy, forces = region.evaluate(placed(ethanol), None)
    assert energy == pytest.approx(ethanol.get_potential_energy() + coulomb, rel=1e-10)
    alone, none = region.evaluate(placed(ethanol), None, with_forces=False)
    assert alone == pytest.approx(energy, rel=1e-12)
    assert none.shape == forces.shape == (14, 3)
    assert not none.any()
    np.testing.assert_allclose(forces.sum(0), 0, atol=1e-9)
    assert region.report().evaluations == 2


@pytest.mark.parametrize("surroundings", [PLAIN, LATTICE], ids=["plain", "lattice"])
def test_forces_are_slopes(charged, ethanol, surroundings):
    """Also where atoms of the region have left the box."""
    region, step, box = evaluator(charged, surroundings), 1e-5, BOX if surroundings.periodic else None
    places = placed(ethanol)
    places[:9] += 40.0
    forces = region.evaluate(places, box)[1]
    for row, axis in ((0, 0), (3, 1), (8, 2), (9, 0), (13, 1)):
        ends = []
        for sign in (1, -1):
            moved = places.copy()
            moved[row, axis] += sign * step
            ends.append(region.evaluate(moved, box, with_forces=False)[0])
        assert (ends[1] - ends[0]) / (2 * step) == pytest.approx(forces[row, axis], abs=1e-6)


def test_an_audit_compares_with_the_exact_model(charged, ethanol):
    step = EmbeddedStep(charged, System.from_ase(ethanol), PLAIN, audit_every=1)
    step.outer.positions.copy_(torch.from_numpy(placed(ethanol)))
    step(ethanol.positions)
    assert step.error < 1e-8
    assert step.outer.forces[9:].abs().max() > 1e-3


def test_another_box_splits_the_sum_anew(charged, ethanol):
    region = evaluator(charged, LATTICE)
    for factor in (1.0, 1 - MARGIN / 2, 1 - 3 * MARGIN, 1 + 3 * MARGIN):
        energy = region.evaluate(placed(ethanol), factor * BOX)[0]
        fresh = evaluator(charged, LATTICE).evaluate(placed(ethanol), factor * BOX)[0]
        assert energy == pytest.approx(fresh, abs=1e-5)


def test_single_precision(make_potential, ethanol):
    settings = dict(model="tensornet2", num_channels=8, num_layers=1)
    exact, single = (make_potential(dtype, **settings) for dtype in (torch.float64, torch.float32))
    found = [evaluator(each).evaluate(placed(ethanol), None) for each in (exact, single)]
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-5)
    np.testing.assert_allclose(found[1][1], found[0][1], atol=1e-4 * np.abs(found[0][1]).max())


@pytest.mark.parametrize("state", [name for name in STATES if "GPU" not in name])
def test_results_do_not_depend_on_the_state_of_the_process(make_potential, ethanol, state):
    region = evaluator(make_potential(torch.float32, model="tensornet2", num_channels=8, num_layers=1))
    energy, forces = region.evaluate(placed(ethanol), None)
    with STATES[state]():
        found, others = region.evaluate(placed(ethanol), None)
    assert found == pytest.approx(energy, abs=1e-6)
    np.testing.assert_allclose(others, forces, atol=1e-5)


def test_weights_and_positions_are_not_touched(charged, ethanol):
    places = placed(ethanol)
    before = places.copy()
    evaluator(charged).evaluate(places, None)
    np.testing.assert_array_equal(places, before)
    assert all(parameter.grad is None for parameter in charged.parameters())
    assert len(charged.priors) == 0


def test_errors(charged, potential, ethanol):
    with pytest.raises(ValueError, match="needs a potential that predicts charges, such as a TensorNet2"):
        evaluator(potential)
    region = evaluator(charged)
    with pytest.raises(NonFiniteError, match="positions around an embedded region must be finite"):
        region.evaluate(placed(ethanol, AROUND * np.nan), None)
    with pytest.raises(NonFiniteError, match="positions, energy or forces of 9 atoms are not finite"):
        region.evaluate(placed(ethanol, np.vstack([ethanol.positions[:1], AROUND[1:]])), None)
