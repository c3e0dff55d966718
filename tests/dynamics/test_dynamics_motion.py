"""The factor of velocity rescaling."""

import numpy as np
import pytest

from torchmdx.dynamics.motion import rescaling


def test_factors_are_those_of_the_paper():
    """Equation A7 of Bussi, Donadio and Parrinello, J. Chem. Phys. 126, 014101 (2007), with K̄ = N k T / 2."""
    kinetic, thermal, kept, numbers = 1.7, 0.3, 0.8, np.array([0.4, -1.2, 0.9, 2.0])
    mean = len(numbers) * thermal / 2
    ratio = mean / (len(numbers) * kinetic)
    expected = kept + ratio * (1 - kept) * (numbers**2).sum() + 2 * numbers[0] * np.sqrt(kept * ratio * (1 - kept))
    found = rescaling(np.array([kinetic]), np.array([thermal]), kept, numbers[:1], (numbers[1:] ** 2).sum())
    assert found[0] ** 2 == pytest.approx(expected)
    assert found[0] > 0


def test_velocities_turn_round_where_the_random_number_is_large_and_negative():
    found = rescaling(np.array([0.01]), np.array([1.0]), 0.1, np.array([-3.0]), np.array([1.0]))
    assert found[0] < 0


def test_nothing_moves_what_is_at_rest():
    assert rescaling(np.zeros(1), np.ones(1), 0.5, np.ones(1), np.ones(1)) == 1
