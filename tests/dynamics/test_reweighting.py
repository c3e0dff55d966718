"""MBAR and profiles against distributions whose free energies are known."""

import re

import numpy as np
import pytest

from torchmdx.dynamics.reweighting import (
    agreement,
    errors_of_differences,
    free_energies,
    overlap,
    profile,
    profile_with_error,
    weights,
)

EACH = 2000


def umbrella(count, spacing, stiffness=8.0):
    """Samples of x²/2 with springs of windows: (x [N], reduced [K,N], free energies [K])."""
    centres = (np.arange(count) - (count - 1) / 2) * spacing
    random = np.random.default_rng(5)
    total = 1 + stiffness
    x = (stiffness * centres[:, None] / total + random.normal(size=(count, EACH)) / np.sqrt(total)).ravel()
    reduced = 0.5 * x**2 + 0.5 * stiffness * (x - centres[:, None]) ** 2
    exact = 0.5 * stiffness * centres**2 / total
    return x, reduced, exact - exact[0]


def test_windows_have_their_free_energies():
    """Differences of neighbours within 0.12 kT, four of their errors of 0.03 kT."""
    _, reduced, exact = umbrella(9, 0.5)
    found = free_energies(reduced, np.full(9, EACH))
    np.testing.assert_allclose(np.diff(found), np.diff(exact), atol=0.12)
    assert exact.max() - exact.min() > 1
    # They solve MBAR's equations.
    mixture = (EACH * np.exp(found[:, None] - reduced)).sum(0)
    np.testing.assert_allclose((np.exp(found[:, None] - reduced) / mixture).sum(1), 1, rtol=1e-6)


def gaussians(seed, count=3, each=200, spacing=1.0):
    """Reduced energies of samples of (x - k spacing)²/2, states of equal free energy."""
    centres = spacing * np.arange(count)
    x = (centres[:, None] + np.random.default_rng(seed).normal(size=(count, each))).ravel()
    return 0.5 * (x - centres[:, None]) ** 2, np.full(count, each)


def test_errors_of_differences_are_those_of_repetitions():
    """The spread of 200 repetitions, known within 5 %, against the mean estimated error; within 15 %."""
    repetitions = [gaussians(seed) for seed in range(200)]
    spread = np.array([free_energies(*each) for each in repetitions]).std(0, ddof=1)
    estimated = np.mean([errors_of_differences(*each) for each in repetitions[:20]], axis=0)
    np.testing.assert_allclose(estimated[0, 1:], spread[1:], rtol=0.15)
    np.testing.assert_allclose(estimated, estimated.T)
    np.testing.assert_array_equal(np.diag(estimated), 0)


def test_pymbar_gives_the_same():
    pymbar = pytest.importorskip("pymbar")
    _, reduced, _ = umbrella(4, 0.5)
    reduced, counts = reduced[:, ::20], np.full(4, EACH // 20)
    found = pymbar.MBAR(reduced, counts).compute_free_energy_differences()
    np.testing.assert_allclose(free_energies(reduced, counts), found["Delta_f"][0], atol=1e-6)
    np.testing.assert_allclose(errors_of_differences(reduced, counts), found["dDelta_f"], atol=1e-6)


def test_two_states_have_the_error_of_bennetts_ratio():
    """1 / Σ p (1 - p) - 1 / N_0 - 1 / N_1, with p the probability that a sample is one of state 1."""
    reduced, counts = gaussians(3, count=2)
    found = free_energies(reduced, counts)
    p = 1 / (1 + counts[0] / counts[1] * np.exp(found[0] - found[1] + reduced[1] - reduced[0]))
    variance = 1 / (p * (1 - p)).sum() - (1 / counts).sum()
    assert errors_of_differences(reduced, counts)[0, 1] == pytest.approx(variance**0.5, rel=1e-6)
    assert overlap(reduced, counts)[0, 1] == pytest.approx((p * (1 - p)).sum() / counts[0], rel=1e-6)


def test_overlap_by_limits():
    """Equal states share everything, by their numbers of samples; states six widths apart share next to nothing."""
    np.testing.assert_allclose(overlap(np.ones((2, 40)), np.array([10, 30])), [[0.25, 0.75]] * 2)
    reduced, counts = gaussians(4, spacing=2.0)
    shared = overlap(reduced, counts)
    np.testing.assert_allclose(shared.sum(1), 1, rtol=1e-6)
    assert 0.1 < shared[0, 1] < 0.3
    assert shared[0, 2] < 0.02
    apart = overlap(*gaussians(4, count=2, each=2000, spacing=6.0))
    assert apart[0, 1] < 0.03


def test_the_profile_of_windows_is_that_without_springs():
    x, reduced, _ = umbrella(13, 0.4)
    weight = weights(reduced, np.full(13, EACH), 0.5 * x**2)
    assert weight.sum() == pytest.approx(1)
    assert (weight * x**2).sum() == pytest.approx(1, abs=0.05)
    edges = np.linspace(-2.25, 2.25, 10)
    centres = (edges[1:] + edges[:-1]) / 2
    found = profile(x, weight, edges)
    np.testing.assert_allclose(found, 0.5 * centres**2, atol=0.12)
    assert found[4] == 0


def test_errors_of_profiles_are_those_of_repetitions():
    """The spread of 4 blocks against the true deviations, as a mean over bins: within a factor of two."""
    x, reduced, _ = umbrella(13, 0.4)
    shape = (13, EACH)
    values, states = x.reshape(shape).T, reduced.reshape(13, *shape).transpose(0, 2, 1)
    edges = np.linspace(-2.25, 2.25, 10)
    found, error = profile_with_error(values, states, 0.5 * values**2, edges)
    deviation = found - 0.5 * ((edges[1:] + edges[:-1]) / 2) ** 2
    deviation -= deviation.mean()
    ratio = np.sqrt((deviation**2).mean() / (error**2).mean())
    assert 0.3 < ratio < 2
    assert 0.003 < error.mean() < 0.1
    np.testing.assert_allclose(found, profile(x, weights(reduced, np.full(13, EACH), 0.5 * x**2), edges), atol=1e-9)
    wide, unknown = profile_with_error(values, states, 0.5 * values**2, np.array([-2.0, 2.0, 50.0, 99.0]))
    assert np.isinf(wide[2])
    assert np.isnan(unknown[2])
    with pytest.raises(ValueError, match="num_blocks must be from 2 to the number of frames, 2000, got 1"):
        profile_with_error(values, states, values, edges, num_blocks=1)


def test_agreement_by_hand():
    """Differences 1, 1 and 4 with combined errors 1, 1 and 1: less their mean, -1, -1 and 2; 6 over two bins, √3."""
    first = np.array([1.0, 2.0, 4.0, 7.0, np.inf]), np.array([0.6, 0.6, 0.6, np.nan, 0.1])
    second = np.array([0.0, 1.0, 0.0, 0.0, 1.0]), np.array([0.8, 0.8, 0.8, 0.1, 0.1])
    apart, bins = agreement(first, second)
    assert (apart, bins) == (pytest.approx(3**0.5), 3)
    # The constant is that of the bins which are known well: the last is 3 errors of 10 apart.
    unsure = np.array([0.6, 0.6, 1e3, np.nan, 0.1])
    assert agreement((first[0], unsure), second)[0] == pytest.approx(3e-3 / 2**0.5, rel=1e-3)


def test_agreement_of_profiles_with_known_errors():
    """About 1 for noise of the size of the errors, and so many times more for errors that are too small."""
    random = np.random.default_rng(5)
    errors = random.uniform(0.1, 1.0, (2, 2000))
    made = random.normal(0, errors)
    found, bins = agreement((made[0] + 7, errors[0]), (made[1] - 3, errors[1]))
    assert (found, bins) == (pytest.approx(1, abs=0.05), 2000)
    assert agreement((made[0], errors[0] / 4), (made[1], errors[1] / 4))[0] == pytest.approx(4 * found)


def test_profiles_need_two_bins_in_common_and_errors():
    known, unknown = np.zeros(3), np.array([1.0, np.nan, np.nan])
    apart, bins = agreement((known, known + 1), (known, unknown))
    assert np.isnan(apart)
    assert bins == 1
    assert agreement((known, known + 1), (known, np.full(3, np.nan)))[1] == 0
    with pytest.raises(ValueError, match="errors must be > 0, got 0 in both profiles"):
        agreement((known, known), (known, known))


def test_energies_far_from_zero_and_from_each_other():
    """States whose energies differ by 10^5 kT: the total energies of molecules at two temperatures."""
    energy = np.random.default_rng(2).gamma(10, 1.0, 4000) - 4e5
    reduced = np.array([[1.0], [0.9]]) * np.concatenate([energy, (energy + 4e5) / 0.9 - 4e5])
    found = free_energies(reduced, np.full(2, 4000))
    assert found[1] == pytest.approx(4e4 + 10 * np.log(0.9), abs=0.1)


def test_temperatures_have_their_free_energies():
    """Energies of n harmonic degrees of freedom: f = n/2 log β. Different numbers of samples of each."""
    degrees, inverse, counts = 20, np.array([2.0, 1.5, 1.1]), np.array([1500, 3000, 900])
    random = np.random.default_rng(8)
    energy = np.concatenate([random.gamma(degrees / 2, 1 / b, n) for b, n in zip(inverse, counts, strict=True)])
    reduced = inverse[:, None] * energy
    exact = degrees / 2 * np.log(inverse / inverse[0])
    np.testing.assert_allclose(free_energies(reduced, counts), exact, atol=0.1)
    # At a temperature between them.
    weight = weights(reduced, counts, 1.3 * energy)
    assert weight @ energy == pytest.approx(degrees / 2 / 1.3, rel=0.02)


def test_bins_without_samples_are_infinite():
    found = profile(np.array([0.5, 2.5]), np.array([0.5, 0.25]), np.arange(4.0))
    np.testing.assert_allclose(found, [0, np.inf, np.log(2)])


def test_an_offset_of_each_sample_cancels():
    _, reduced, _ = umbrella(5, 0.5)
    moved = reduced + np.random.default_rng(1).normal(0, 1000, reduced.shape[1])
    counts = np.full(5, EACH)
    np.testing.assert_allclose(free_energies(moved, counts), free_energies(reduced, counts), atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "counts", "words"),
    [
        ((2, 3), [1, 1, 1], "reduced must be [K,N] and counts [K], got [2, 3] and [3]"),
        ((2, 3), [3, 0], "counts must be >= 1 and sum to 3 samples, got [3, 0]"),
        ((2, 3), [1, 1], "counts must be >= 1 and sum to 3 samples, got [1, 1]"),
    ],
)
def test_arguments_that_do_not_fit(shape, counts, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        free_energies(np.zeros(shape), np.array(counts))
    with pytest.raises(ValueError, match="reduced energies must be finite"):
        free_energies(np.array([[np.nan]]), np.array([1]))
