"""Spread against error: correlations against those of SciPy, and values that do not vary."""

import math

import numpy as np
import pytest
from scipy import stats

from torchmdx.report.scales import MILLI_EV
from torchmdx.report.uncertainty import SpreadAndError


def collected(spread, error, parts=3):
    found = SpreadAndError()
    for some in np.array_split(np.arange(len(spread)), parts):
        found.add(spread[some], error[some])
    return found


def test_correlations_and_ratio():
    random = np.random.default_rng(3)
    spread = random.lognormal(size=500).round(1)  # with ties
    error = np.abs(2 * spread * random.normal(size=500))
    found = collected(spread, error)
    assert found.count == 500
    assert found.correlation == pytest.approx(stats.pearsonr(spread, error).statistic, rel=1e-9)
    assert found.rank_correlation == pytest.approx(stats.spearmanr(spread, error).statistic, rel=1e-9)
    assert found.rms_spread == pytest.approx(np.sqrt((spread**2).mean()))
    assert found.ratio == pytest.approx(np.sqrt((error**2).mean() / (spread**2).mean()))
    numbers = found.summary(MILLI_EV.forces)
    assert numbers["rms_error"] == pytest.approx(1000 * found.rms_error)
    assert (numbers["unit"], numbers["count"]) == ("meV/Å", 500)


def test_bins_hold_all_pairs_by_spread():
    random = np.random.default_rng(3)
    spread = random.lognormal(size=600)
    error = 3 * spread
    bins = collected(spread, error).binned(12)
    assert bins.shape == (12, 2)
    assert (np.diff(bins[:, 0]) > 0).all()
    np.testing.assert_allclose(bins[:, 1], 3 * bins[:, 0])
    np.testing.assert_allclose((bins**2).mean(0), [(spread**2).mean(), (error**2).mean()])
    assert collected(spread[:3], error[:3]).binned().shape == (1, 2)


def test_values_that_do_not_vary_have_no_correlation():
    for spread, error in (
        (np.zeros(4), np.arange(4.0)),
        (np.full(4, 0.1), np.arange(4.0)),
        (np.arange(4.0), np.ones(4)),
    ):
        found = collected(spread, error, parts=1)
        assert math.isnan(found.correlation)
        assert math.isnan(found.rank_correlation)
        assert found.summary(MILLI_EV.energy)["correlation"] is None
    assert SpreadAndError().summary(MILLI_EV.energy) == {
        "unit": "meV/atom",
        "rms_spread": None,
        "rms_error": None,
        "error_over_spread": None,
        "correlation": None,
        "rank_correlation": None,
        "miscalibration_area": None,
        "negative_log_likelihood": None,
        "count": 0,
    }
