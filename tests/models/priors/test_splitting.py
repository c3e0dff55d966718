"""The splitting of Ewald sums between pairs and waves."""

import math

import pytest

from torchmdx.models.priors.splitting import VECTOR_COST, Splitting


@pytest.mark.parametrize("accuracy", [1e-3, 1e-6, 1e-12])
@pytest.mark.parametrize("cutoff", [5.0, 12.0])
def test_both_sums_have_the_error_that_was_requested(accuracy, cutoff):
    found = Splitting.of(accuracy, cutoff)
    number, volume, square = 1000, 1e4, 0.3  # of a density of 0.1 and any charge
    common = 2 * number * square / math.sqrt(number * volume)
    real = common / math.sqrt(cutoff) * math.exp(-((found.alpha * cutoff) ** 2))
    reciprocal = common * found.alpha * math.sqrt(2 / found.longest)
    reciprocal *= math.exp(-((found.longest / (2 * found.alpha)) ** 2))
    force = square * 0.1 ** (2 / 3)
    assert math.hypot(real, reciprocal) == pytest.approx(accuracy * force, rel=1e-9)
    assert found.exponent == pytest.approx((found.alpha * cutoff) ** 2)


def test_the_cutoff_with_the_least_work():
    def work(cutoff, volume):
        found = Splitting.of(1e-5, cutoff)
        vectors = volume * found.longest**3 / (12 * math.pi**2)
        return 4 / 3 * math.pi * 0.1 * cutoff**3 + VECTOR_COST * vectors

    for volume in (3e3, 2e4):
        chosen = Splitting.balanced(1e-5, volume)
        assert 7 < chosen.cutoff < 12
        for factor in (0.9, 1.1):
            assert work(chosen.cutoff, volume) < work(factor * chosen.cutoff, volume)
    assert Splitting.balanced(1e-5, 100.0).cutoff == 7.0
    assert Splitting.balanced(1e-5, 1e7).cutoff == 12.0
