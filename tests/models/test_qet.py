"""QET: what its charges minimize, its settings, and its results."""

import numpy as np
import pytest
import torch
from ase.build import molecule

from torchmdx import Batch, Calculator, System, evaluate
from torchmdx.models.qet import QETConfig, unit_potential


@pytest.mark.parametrize("hardness", ["environment", "element"])
def test_charges_minimize_their_energy_at_the_total_charge(make_potential, hardness):
    network = make_potential(model="qet", hardness=hardness).network
    batch = Batch.from_systems(
        [System.from_ase(molecule("CH3CH2OH"), 1.0), System.from_ase(molecule("H2O"), -0.5), System.create([], [])]
    )
    x = torch.randn(batch.num_atoms, network.config.num_channels, dtype=torch.float64)
    charges = network.charges(x, batch)
    share, softness = network.shares(x, batch.atomic_numbers).unbind(-1)
    slope = share / softness + charges / softness  # χ + η q, the same for all atoms of a system
    for system, total in ((0, 1.0), (1, -0.5)):
        own = batch.system_index == system
        assert float(charges[own].sum()) == pytest.approx(total, abs=1e-12)
        assert float(slope[own].max() - slope[own].min()) < 1e-12
    assert float(charges.max() - charges.min()) > 1e-2


def test_the_potential_of_a_charge_is_smeared_and_ends_smoothly():
    config = QETConfig(cutoff=4.0, coulomb=14.4)
    r = torch.tensor([1e-6, 1.0, 3.999, 4.0, 1e6], dtype=torch.float64)
    width = torch.full_like(r, 0.5)
    found = unit_potential(r, width, config)
    x = 0.25
    assert float(found[1]) == pytest.approx(14.4 * 0.8427007929497149 * (1 - 10 * x**3 + 15 * x**4 - 6 * x**5))
    assert float(found[0]) == pytest.approx(14.4 * 2 / np.sqrt(np.pi), rel=1e-5)  # finite where atoms meet
    assert 0 < float(found[2]) < 1e-9
    assert found[3:].tolist() == [0.0, 0.0]


def test_the_total_charge_changes_energy_and_charges(make_potential):
    calculator = Calculator(make_potential(model="qet"), dtype="float64", device="cpu")
    atoms = molecule("CH3CH2OH", calculator=calculator)
    neutral, charges = atoms.get_potential_energy(), atoms.get_charges()
    atoms.info["charge"] = 1.0
    assert abs(atoms.get_potential_energy() - neutral) > 1e-4
    assert abs(charges.sum()) < 1e-12
    assert atoms.get_charges().sum() == pytest.approx(1.0, abs=1e-12)
    assert atoms.get_dipole_moment().shape == (3,)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (dict(head="scalar"), "head of a QET must be 'gated', got 'scalar'"),
        (dict(charge_factor=True), "charge_factor of a QET must be False, got True"),
        (dict(hardness="atom"), "hardness must be one of environment, element, got 'atom'"),
        (dict(coulomb=0.0), "coulomb must be > 0 eV Å and finite, got 0.0"),
        (dict(coulomb=True), "coulomb must be > 0 eV Å and finite, got True"),
    ],
)
def test_settings_are_checked(settings, text):
    with pytest.raises(ValueError, match=text):
        QETConfig(**settings)


def test_the_potential_of_neighbours_and_that_of_the_own_charge_differ(make_potential):
    atoms = molecule("CH3CH2OH")
    theirs = make_potential(model="qet", num_layers=0)
    own = make_potential(model="qet", num_layers=0, messages="target")
    own.load_state_dict(theirs.state_dict())
    results = [evaluate(one, System.from_ase(atoms)) for one in (theirs, own)]
    torch.testing.assert_close(results[0].charges, results[1].charges, rtol=0, atol=1e-14)
    assert abs(float(results[0].energy - results[1].energy)) > 1e-5
