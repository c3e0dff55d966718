"""Fits that outliers do not change, against coefficients that the values were made with."""

import numpy as np
import pytest

from torchmdx.datasets.robust_fit import robust_fit

TRUE = np.array([-16.0, -1030.0, -2040.0])


def made(count, noise=0.02, seed=0):
    """Shares of three elements [n,3] and energies per atom [n]."""
    generator = np.random.default_rng(seed)
    rows = generator.integers(1, 9, (count, 3)).astype(float)
    rows /= rows.sum(1, keepdims=True)
    return rows, rows @ TRUE + generator.normal(0, noise, count)


@pytest.mark.parametrize("wrong", [0.02, 0.1, 0.3])
def test_wrong_values_do_not_change_the_coefficients(wrong):
    rows, values = made(200)
    bad = np.arange(int(wrong * 200))
    values[bad] *= 23.06  # all on one side
    found = robust_fit(rows, values)
    np.testing.assert_allclose(found.coefficients, TRUE, atol=0.15)
    assert found.deviation == pytest.approx(0.03, rel=0.5)
    assert np.flatnonzero(found.is_outlier(rows, values)).tolist() == bad.tolist()
    plain = np.linalg.lstsq(rows, values, rcond=None)[0]
    assert np.abs(plain - TRUE).max() > 100


def test_good_values_have_no_outliers():
    rows, values = made(500, noise=0.3, seed=1)
    found = robust_fit(rows, values)
    assert not found.is_outlier(rows, values).any()
    assert (found.rank, found.deviation) == (3, pytest.approx(0.3, rel=0.1))


def test_few_values_have_no_outliers_and_one_composition_has_the_smallest_coefficients():
    rows, values = made(12)
    values[0] = 0.0
    assert robust_fit(rows, values).deviation == np.inf
    assert not robust_fit(rows, values).is_outlier(rows, values).any()
    water = robust_fit(np.tile([2 / 3, 1 / 3], (30, 1)), np.full(30, -10.0))
    np.testing.assert_allclose(water.coefficients, [-12.0, -6.0], atol=1e-6)
    assert water.rank == 1
    assert robust_fit(np.zeros((0, 2)), np.zeros(0)).coefficients.tolist() == [0.0, 0.0]
