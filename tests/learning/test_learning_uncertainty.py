"""The uncertainty of frames."""

import numpy as np
import pytest
import torch

from tests.learning.test_learning_explore import ensemble
from torchmdx import Dynamics, evaluate
from torchmdx.learning.replicas import dynamics_of, replicas_of
from torchmdx.learning.sections import ExploreSection
from torchmdx.learning.uncertainty import quantile, require_uncertain, uncertainties
from torchmdx.models.uncertainty import Uncertainty, last_layer_size, with_uncertainty
from torchmdx.structures.system import System


def test_it_is_the_largest_spread_of_a_force():
    potential = ensemble()
    atoms = [System.create([[0, 0, 0], [0, 0, 1.1 + k]], [6, 8]) for k in range(2)]
    found = uncertainties(Dynamics(potential, atoms).snapshot())
    expected = [float(evaluate(potential, one).force_spread.max()) for one in atoms]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def with_rigidity(potential):
    size = last_layer_size(potential)
    root = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return with_uncertainty(potential, Uncertainty(covariance=root @ root.T / size, regulariser=0.1, factor=0.5))


def test_of_a_single_potential_it_is_the_largest_uncertainty_of_an_atom():
    potential = with_rigidity(ensemble()[0])
    atoms = [System.create([[0, 0, 0], [0, 0, 1.1 + k]], [6, 8]) for k in range(2)]
    explore = ExploreSection(temperatures=[300.0])
    dynamics = dynamics_of(explore, potential, atoms, replicas_of(explore, 2, 0, 1))
    found = uncertainties(dynamics.snapshot())
    expected = [float(evaluate(potential, one).energies_uncertainty.max()) for one in atoms]
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    require_uncertain(potential, "last_layer", "x")
    with pytest.raises(ValueError, match="needs a potential with an uncertainty to explore with, got 'x' without"):
        require_uncertain(ensemble()[0], "last_layer", "x")


def test_a_single_potential_without_an_uncertainty_is_refused():
    with pytest.raises(ValueError, match="needs an ensemble to explore with, got the single potential 'organic-1'"):
        require_uncertain(ensemble()[0], "ensemble", "organic-1")
    require_uncertain(ensemble(), "ensemble", "x")


def test_quantiles_are_values_that_enough_frames_do_not_exceed():
    values = np.array([4.0, 1.0, 3.0, 2.0])
    assert [quantile(values, share) for share in (0.0, 0.25, 0.5, 0.95, 1.0)] == [1.0, 1.0, 2.0, 4.0, 4.0]
    assert np.isnan(quantile(values[:0], 0.5))
