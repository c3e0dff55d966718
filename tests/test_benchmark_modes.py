"""benchmarks/multiple_steps_modes: stationary covariances against the scheme carried out step by step."""

import sys
from pathlib import Path

import numpy as np
import pytest
from ase.build import molecule

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.multiple_steps_modes import Vibrations, averages, covariance

RANDOM = np.random.default_rng(5)


def vibrations(size: int, wrong: float) -> Vibrations:
    """Stiffnesses like those of bonds and angles in 1/fs², and a fast potential that is wrong by that share."""
    full = np.diag(np.linspace(0.02, 0.6, size) ** 2)
    noise = RANDOM.normal(0, wrong, (size, size))
    root = np.sqrt(full)
    return Vibrations(full, full + root @ (noise + noise.T) / 2 @ root, np.eye(size), np.ones(size))


def carried_out(modes: Vibrations, timestep: float, inner: int, friction: float) -> np.ndarray:
    """<q q> after many outer steps, with the equations written out for each start and each random number alone."""
    size, kept = len(modes.full), np.exp(-friction * timestep / 1000)

    def outer_step(positions, velocities, noises):
        positions, velocities = positions.copy(), velocities.copy()
        velocities -= inner * timestep / 2 * (modes.full - modes.fast) @ positions
        for noise in noises:
            velocities -= timestep / 2 * modes.fast @ positions
            positions += timestep / 2 * velocities
            velocities = kept * velocities + np.sqrt(1 - kept**2) * noise
            positions += timestep / 2 * velocities
            velocities -= timestep / 2 * modes.fast @ positions
        velocities -= inner * timestep / 2 * (modes.full - modes.fast) @ positions
        return np.concatenate([positions, velocities])

    one, zero = np.eye(size), np.zeros((size, size))
    still = [zero] * inner
    whole = np.concatenate([outer_step(one, zero, still), outer_step(zero, one, still)], axis=1)
    noises = [outer_step(zero, zero, [one if k == j else zero for j in range(inner)]) for k in range(inner)]
    found = np.eye(2 * size)
    for _ in range(3000):
        found = whole @ found @ whole.T + sum(noise @ noise.T for noise in noises)
    return found[:size, :size]


def test_the_covariance_is_that_of_the_equations():
    modes, friction = vibrations(3, 0.25), 20.0
    found = covariance(modes, 1.0, 3, friction)
    assert found == pytest.approx(carried_out(modes, 1.0, 3, friction), rel=1e-5, abs=1e-4)
    exact = np.diag(1 / np.diag(modes.full))
    assert np.abs(np.diag(found) / np.diag(exact) - 1).max() > 1e-3  # so that the test sees the scheme


def test_single_steps_and_equal_potentials_have_no_harmonic_error():
    modes = vibrations(5, 0.1)
    exact = np.diag(1 / np.diag(modes.full))
    assert covariance(modes, 1.5, 1) == pytest.approx(exact, rel=1e-7, abs=1e-6)
    equal = Vibrations(modes.full, modes.full, modes.directions, modes.masses)
    assert covariance(equal, 0.5, 6) == pytest.approx(exact, rel=1e-7, abs=1e-6)


def test_half_a_period_resonates():
    modes = vibrations(1, 0.0)
    softer = Vibrations(modes.full, 0.8 * modes.full, modes.directions, modes.masses)
    period = 2 * np.pi / 0.02
    assert covariance(softer, period / 40, 5) is not None
    assert covariance(softer, period / 40, 20) is None


def test_averages_of_an_exact_covariance_are_one_and_of_a_hot_one_its_factor():
    atoms = molecule("CH3CH2OH")
    size = 3 * len(atoms)
    root = RANDOM.normal(size=(size, size))
    full = root @ root.T + np.eye(size)
    modes = Vibrations.of(full, full, atoms.get_masses())
    assert len(modes.full) == size - 6
    for factor in (1.0, 1.3):
        found = averages(modes, factor * np.diag(1 / np.diag(modes.full)), atoms.numbers, atoms.positions)
        assert list(found.values()) == pytest.approx([factor] * 6)
    with pytest.raises(ValueError, match="a minimum must have positive second derivatives, got -"):
        Vibrations.of(-full, full, atoms.get_masses())
