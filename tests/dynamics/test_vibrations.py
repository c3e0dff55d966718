"""Steps that the vibrations of hydrogens allow."""

import numpy as np
import pytest

from torchmdx.dynamics.vibrations import (
    doubt_about_outer_step,
    lightest_hydrogen,
    longest_outer_step,
    longest_step,
    recommended_inner,
)


def test_steps_grow_with_the_root_of_the_mass():
    assert longest_step(4.032) == 2 * longest_step(1.008) == 2.5
    assert longest_outer_step(2.016) == pytest.approx(2**0.5 * longest_outer_step(1.008))
    assert 2.0 < longest_outer_step(1.008) < 2.5
    assert 4.0 < longest_outer_step(3.0) < 4.5
    assert longest_outer_step(4.0) == longest_outer_step(3.0) == longest_outer_step(None)


def test_the_recommended_inner_steps_fill_the_outer_step():
    found = [recommended_inner(step, mass) for step, mass in ((0.5, 1.008), (1.0, 1.008), (1.0, 3.0), (2.0, 3.0))]
    assert found == [4, 2, 4, 2]
    assert recommended_inner(2.0, None) == 2
    assert recommended_inner(5.0, 1.008) == 1


def test_only_hydrogens_that_move_count():
    numbers, masses = np.array([6, 1, 1]), np.array([12.0, 1.008, 3.0])
    assert lightest_hydrogen(numbers, masses, np.zeros(3, bool)) == 1.008
    assert lightest_hydrogen(numbers, masses, np.array([False, True, False])) == 3.0
    assert lightest_hydrogen(numbers[:1], masses[:1], np.zeros(1, bool)) is None


def test_a_doubt_states_the_limit_and_what_was_given():
    assert doubt_about_outer_step(0.5, 4, 1.008) is None
    assert doubt_about_outer_step(3.0, 1, 1.008) is None  # a single step
    assert doubt_about_outer_step(10.0, 4, None) is None
    found = doubt_about_outer_step(1.0, 3, 1.008)
    assert "an outer step of 3 x 1 fs is too long for hydrogens of 1.008 amu" in found
    assert "at most 2.33 fs, or 4.01 fs with hydrogens of 3 amu" in found
