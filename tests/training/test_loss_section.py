"""Settings of the loss: defaults and impossible combinations."""

import pytest
from pydantic import ValidationError

from torchmdx.training.loss_section import LossSection


def test_energy_and_forces_are_trained_by_default():
    loss = LossSection()
    assert (loss.energy.weight, loss.forces.weight, loss.stress.weight) == (10.0, 1.0, None)


def test_charges_and_dipoles_are_trained_on_request():
    loss = LossSection(energy={"weight": 0.0}, forces={"weight": 0.0}, dipole={"weight": 2.0})
    assert [term.weight for term in loss.terms().values()] == [0.0, 0.0, None, 0.0, 2.0]


def test_a_loss_needs_a_term():
    with pytest.raises(ValidationError, match="must have a weight > 0, got 0 for all"):
        LossSection(energy={"weight": 0.0}, forces={"weight": 0.0})
    assert LossSection(energy={"weight": 0.0}, forces={"weight": 0.0, "final_weight": 1.0}).forces.final_weight == 1.0
