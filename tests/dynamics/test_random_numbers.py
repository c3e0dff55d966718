"""Random numbers by counter: the published generator, normal distributions, and nothing that depends on blocks."""

import numpy as np
import pytest
from scipy import stats

from torchmdx.dynamics.random_numbers import (
    STEPS_A_BLOCK,
    THERMOSTAT,
    VELOCITIES,
    Noise,
    log_uniform,
    normals,
    philox,
    structure_seeds,
    uniform,
)

# kat_vectors of Random123: philox4x32 10 (counter, key, words).
PUBLISHED = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return tuple(np.uint64(int(word, 16)) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "expected"), PUBLISHED)
def test_the_words_are_those_of_random123(counter, key, expected):
    assert philox(words(counter), words(key)) == words(expected)


@pytest.mark.parametrize("first", [0, 2**31, 2**62])
def test_structures_of_runs_with_other_seeds_have_other_seeds(first):
    seeds = np.array([structure_seeds(first + run, 200) for run in range(200)])
    assert len(np.unique(seeds)) == seeds.size
    assert (seeds >= 0).all()
    np.testing.assert_array_equal(seeds[:, 0], first + np.arange(200))
    np.testing.assert_array_equal(structure_seeds(first, 5), seeds[0, :5])  # whatever the number of structures
    # Bits of derived seeds are those of fair coins: each is set in half of the cases within 5 standard deviations.
    derived = seeds[:, 1:]
    assert np.abs(((derived[..., None] >> np.arange(63)) & 1).mean((0, 1)) - 0.5).max() < 2.5 / np.sqrt(derived.size)


def test_uniform_numbers_exclude_both_ends():
    low, high = uniform(np.array([0, 2**32 - 1], dtype=np.uint64))
    assert 0 < low < 2e-10
    assert 1 - 2e-10 < high < 1


def test_logarithms_are_right_to_the_last_bits():
    words = np.concatenate([[0, 1, 2**31, 2**32 - 1], np.random.default_rng(0).integers(0, 2**32, 5000)])
    found = log_uniform(words.astype(np.uint64))
    np.testing.assert_allclose(found, np.log(uniform(words.astype(np.uint64))), rtol=5e-16)


def test_numbers_are_normal_and_independent():
    count = 40_000
    seeds, atoms = np.full(count, 7), np.arange(count) % 200
    found = normals(seeds, atoms, np.arange(count) // 200, THERMOSTAT)
    for column in found.T:
        assert stats.kstest(column, "norm").pvalue > 1e-4
    # Correlations between directions, atoms, steps, seeds and purposes: 5 standard deviations.
    others = [
        normals(seeds + 1, atoms, np.arange(count) // 200, THERMOSTAT)[:, 0],
        normals(seeds, atoms, np.arange(count) // 200, VELOCITIES)[:, 0],
        np.roll(found[:, 0], 1),
        np.roll(found[:, 0], 200),
        found[:, 1],
        found[:, 2],
    ]
    for other in others:
        assert abs(np.mean(found[:, 0] * other)) < 5 / np.sqrt(count)
        assert abs(np.mean((found[:, 0] ** 2 - 1) * (other**2 - 1))) < 5 * 2 / np.sqrt(count)


def test_large_seeds_and_steps_differ():
    one = np.array([1])
    found = [
        normals(np.array([seed]), one, np.array([step]), THERMOSTAT)
        for seed in (5, 5 + 2**32, 5 + 2**62)
        for step in (3, 3 + 2**32)
    ]
    assert len({values.tobytes() for values in found}) == 6


@pytest.mark.parametrize("order", [range(40), reversed(range(40)), (17, 3, 35, 16, 15)])
def test_noise_is_a_function_of_the_step(order):
    seeds, atoms = np.array([4, 4, 9]), np.array([0, 1, 0])
    noise = Noise(seeds, atoms)
    for step in order:
        expected = Noise(seeds, atoms)(step)
        np.testing.assert_array_equal(noise(step), expected)
        np.testing.assert_allclose(noise(step), normals(seeds, atoms, np.full(3, step), THERMOSTAT), rtol=1e-14)


def test_noise_of_an_atom_does_not_depend_on_other_structures():
    alone = Noise(np.full(5, 9), np.arange(5))
    beside = Noise(np.repeat([3, 9], [7, 5]), np.concatenate([np.arange(7), np.arange(5)]))
    for step in (0, STEPS_A_BLOCK - 1, STEPS_A_BLOCK):
        np.testing.assert_allclose(beside(step)[7:], alone(step), rtol=1e-14)
