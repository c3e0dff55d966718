"""Counter-based random numbers: each is a function of seed, step, atom and purpose, and of nothing else.

Philox4x32-10 (Salmon et al., SC 2011, https://doi.org/10.1145/2063384.2063405) maps a counter of four 32-bit words and
a key of two to four random words. The key is the seed of a structure (`structure_seeds`); the counter is (atom in its
structure, low and high word of the step, purpose). Numbers therefore depend neither on how many steps are taken at once
nor on the other structures of a batch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# What random numbers are for: numbers of different purposes are independent.
THERMOSTAT, VELOCITIES, EXCHANGE, BAROSTAT, SEEDS = range(5)

Words = NDArray[np.uint64]
Floats = NDArray[np.float64]

MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
KEY_STEPS = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
ROUNDS = 10
# Of `log_uniform`: bits of a float64, constants, and terms of its series.
MANTISSA, ONE = np.int64(2**52 - 1), np.int64(1023 << 52)
LOG_2, SQRT_2, LOG_TERMS = 0.6931471805599453, 1.4142135623730951, 12
LOW, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
STEPS_A_BLOCK = 16  # numbers for this many steps are drawn at once: NumPy's overhead is larger than the work


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, Words, Words, Words]:
    """Four random words for each counter and key; all values are below 2^32, and shapes broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        first, second = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (second >> HALF) ^ c1 ^ k0, second & LOW, (first >> HALF) ^ c3 ^ k1, first & LOW
        k0, k1 = (k0 + KEY_STEPS[0]) & LOW, (k1 + KEY_STEPS[1]) & LOW
    return c0, c1, c2, c3


def structure_seeds(seed: int, count: int) -> NDArray[np.int64]:
    """Seeds [count] of the structures of a run, below 2^63.

    That of the first is the seed of the run, so that it moves as a single structure does. The others are random
    numbers of seed and structure: runs with other seeds, also adjacent ones, have no seed in common.
    """
    structure = np.arange(count, dtype=np.uint64)
    key, zero = np.full_like(structure, seed), np.zeros_like(structure)
    counter = (structure & LOW, structure >> HALF, zero, zero + np.uint64(SEEDS))
    low, high, _, _ = philox(counter, (key & LOW, key >> HALF))
    found = (low | (high << HALF)).view(np.int64) & np.int64(2**63 - 1)
    found[0] = seed
    return found


def uniform(words: Words) -> Floats:
    """Numbers between 0 and 1, both excluded, from words below 2^32."""
    return (words.astype(np.float64) + 0.5) * 2.0**-32


def log_uniform(words: Words) -> Floats:
    """Logarithms of the numbers of `uniform`, from basic operations alone, so that a GPU computes the same bits.

    The exponent of the number, and 2 artanh of a ratio for the rest, whose series ends where terms are below rounding.
    """
    number = words.astype(np.float64) + 0.5
    bits = number.view(np.int64)
    exponent = (bits >> 52) - 1023
    fraction = ((bits & MANTISSA) | ONE).view(np.float64)
    large = fraction > SQRT_2
    fraction = np.where(large, 0.5 * fraction, fraction)
    exponent = np.where(large, exponent + 1, exponent)
    ratio = (fraction - 1.0) / (fraction + 1.0)
    square = ratio * ratio
    series = np.zeros_like(ratio)
    for k in range(LOG_TERMS):
        series = series * square + 1.0 / (2 * (LOG_TERMS - 1 - k) + 1)
    return (exponent - 32).astype(np.float64) * LOG_2 + (2.0 * ratio) * series


def normals(seeds: NDArray[np.int64], atoms: NDArray[np.int64], steps: NDArray[np.int64], purpose: int) -> Floats:
    """Standard normal numbers [...,3] by Box and Muller's method, for seeds, atoms and steps of any one shape.

    The largest is 6.8, since words have 32 bits.
    """
    seed, atom, step = (np.asarray(value).astype(np.uint64) for value in (seeds, atoms, steps))
    counter = (atom & LOW, step & LOW, step >> HALF, np.uint64(purpose) + np.zeros_like(atom))
    u0, u1, u2, u3 = (uniform(words) for words in philox(counter, (seed & LOW, seed >> HALF)))
    radius, other = np.sqrt(-2 * np.log(u0)), np.sqrt(-2 * np.log(u2))
    angle = 2 * np.pi * u1
    return np.stack([radius * np.cos(angle), radius * np.sin(angle), other * np.cos(2 * np.pi * u3)], axis=-1)


class Noise:
    """Standard normal numbers [N,3] of each step for the thermostat, made in blocks of steps.

    Args:
        seeds, atoms ([N]): The seed of each atom's structure, and the atom's index in it.
    """

    def __init__(self, seeds: NDArray[np.int64], atoms: NDArray[np.int64]) -> None:
        self._seeds, self._atoms = seeds, atoms
        self._number, self._block = -1, np.zeros((0, len(atoms), 3))

    def __call__(self, step: int) -> Floats:
        number, place = divmod(step, STEPS_A_BLOCK)
        if number != self._number:
            steps = np.arange(number * STEPS_A_BLOCK, (number + 1) * STEPS_A_BLOCK)[:, None]
            shape = (STEPS_A_BLOCK, len(self._atoms))
            seeds, atoms, steps = (np.broadcast_to(values, shape) for values in (self._seeds, self._atoms, steps))
            self._block = normals(seeds, atoms, steps, THERMOSTAT)
            self._number = number
        return self._block[place]
