"""benchmarks/observables: averages and errors of made-up trajectories whose values are known."""

import sys
from pathlib import Path

import numpy as np
import pytest
from ase.build import molecule

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks import observables

RANDOM = np.random.default_rng(3)


def test_the_error_of_a_mean_is_the_scatter_of_repeated_means():
    means = [observables.mean_and_error(row) for row in RANDOM.normal(5, 2, (400, 64))]
    assert np.mean([error for _, error in means]) == pytest.approx(0.25, rel=0.03)
    assert np.std([mean for mean, _ in means]) == pytest.approx(0.25, rel=0.15)


def test_the_error_of_a_ratio_is_the_scatter_of_repeated_ratios():
    below = RANDOM.uniform(1, 3, (400, 64))
    found = [observables.ratio_and_error(3 * b + RANDOM.normal(0, 0.5, 64), b) for b in below]
    assert np.mean([ratio for ratio, _ in found]) == pytest.approx(3, abs=0.01)
    assert np.std([ratio for ratio, _ in found]) == pytest.approx(np.mean([error for _, error in found]), rel=0.15)


def test_equal_distributions_are_as_far_apart_as_expected_and_others_farther():
    frames = RANDOM.normal(0, 1, (200, 32))
    counts = observables.histogram(frames, -4, 4, 20)
    assert counts.sum() == frames.size
    same = observables.distance(counts[:16], counts[16:])
    assert same["p"] > 0.01
    assert same["distance"] == pytest.approx(same["expected"], rel=0.6)
    wider = observables.histogram(1.2 * RANDOM.normal(0, 1, (200, 16)), -4, 4, 20)
    other = observables.distance(counts[:16], wider)
    assert other["p"] == 0.0
    assert other["distance"] > 2 * other["expected"]
    assert observables.distance_of(np.array([[1.0, 0]]), np.array([[0, 1.0]])) == 1.0


def test_bonds_are_those_of_the_molecule():
    atoms = molecule("CH3CH2OH")
    found = observables.bonds_of(atoms.numbers, atoms.positions)
    assert {name: len(pairs) for name, pairs in found.items()} == {"heavy": 2, "C-H": 5, "O-H": 1}
    frames = np.tile(atoms.positions, (3, 2, 1, 1))
    first, second = found["O-H"][0]
    expected = atoms.get_distance(first, second)
    assert observables.lengths(frames, found["O-H"]) == pytest.approx(np.full((3, 2, 1), expected))


def test_torsions_are_those_of_ase():
    positions = RANDOM.normal(0, 1, (5, 2, 4, 3))
    from ase import Atoms

    expected = [[Atoms("H4", frame).get_dihedral(0, 1, 2, 3) for frame in pair] for pair in positions]
    found = observables.torsion(positions, (0, 1, 2, 3))
    assert found % 360 == pytest.approx(np.array(expected))


def test_random_points_have_a_radial_distribution_of_one():
    frames = RANDOM.uniform(0, 10, (20, 2, 60, 3))
    counts = observables.pair_counts(frames, 10.0, 5, 5.0)
    found = observables.radial_distribution(counts, 60, 20, 10.0, 5.0)
    assert found[:, 1:] == pytest.approx(np.ones((2, 4)), rel=0.06)


def test_a_random_walk_diffuses_as_fast_as_its_steps():
    walk = np.cumsum(RANDOM.normal(0, 0.1, (2000, 4, 30, 3)), axis=0)
    found = observables.diffusion(walk, 0.1, 0.5, 2.0)
    expected = 0.1**2 / (2 * 0.1) * 10  # σ²/(2 Δt) in Å²/ps, in 10⁻⁵ cm²/s
    assert found.mean() == pytest.approx(expected, rel=0.05)
    assert np.isnan(observables.diffusion(walk[:10], 0.1, 0.5, 2.0)).all()


def autoregressive(kept, shape, random):
    """Values of the correlation time (1 + kept) / (1 - kept) / 2, in steps."""
    series = random.normal(0, 1, (shape[0] + 100, *shape[1:]))
    for k in range(1, len(series)):
        series[k] += kept * series[k - 1]
    return series[100:]


def test_a_correlation_time_is_that_of_an_autoregressive_process():
    random = np.random.default_rng(5)
    series, noise = (autoregressive(kept, (20_000, 16), random) for kept in (0.8, 0.0))
    for longest in (np.inf, 5.0):
        assert observables.correlation_time(7 + series, 2.0, longest) == pytest.approx(9.0, rel=0.03)
        assert observables.correlation_time(noise, 2.0, longest) == pytest.approx(1.0, rel=0.05)


def test_the_error_of_a_correlation_time_is_the_scatter_of_repeated_ones():
    random = np.random.default_rng(5)
    found = [observables.time_and_error(autoregressive(0.8, (450, 16), random), 2.0, 5.0) for _ in range(60)]
    times, errors = np.array(found).T
    assert times.mean() == pytest.approx(9.0, rel=0.05)
    assert errors.mean() == pytest.approx(times.std(), rel=0.3)
