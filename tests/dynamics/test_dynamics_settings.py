"""Values per structure from one or several numbers."""

import numpy as np
import pytest

from torchmdx.dynamics.random_numbers import structure_seeds
from torchmdx.dynamics.settings import LARGEST_SEED, checked_seeds, checked_temperatures, checked_timestep


def test_one_number_serves_all():
    np.testing.assert_array_equal(checked_temperatures(300, 3, zero=False), [300.0] * 3)
    np.testing.assert_array_equal(checked_seeds(7, 3), structure_seeds(7, 3))
    assert checked_seeds(LARGEST_SEED, 1).tolist() == [LARGEST_SEED]
    np.testing.assert_array_equal(checked_seeds([7, 7, 1], 3), [7, 7, 1])
    assert checked_timestep(1) == 1.0


@pytest.mark.parametrize("seed", [LARGEST_SEED + 1, 2**64, -3])
def test_seeds_out_of_range(seed):
    with pytest.raises((ValueError, TypeError), match="seed must be"):
        checked_seeds(seed, 2)


@pytest.mark.parametrize("timestep", [0, -1, float("nan"), float("inf")])
def test_timesteps_out_of_range(timestep):
    with pytest.raises(ValueError, match="timestep must be > 0 fs"):
        checked_timestep(timestep)
