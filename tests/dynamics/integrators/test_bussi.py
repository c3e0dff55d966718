"""Stochastic velocity rescaling: its factor, and distributions of free particles and oscillators in closed form."""

import numpy as np
import pytest
from interpreter import needs_kernels
from on_device import require_same_on_device
from oscillators import FREQUENCY, STIFFNESS, TEMPERATURE, THERMAL, last, springs
from scipy import stats

from torchmdx.dynamics.integrators import Bussi
from torchmdx.dynamics.integrators.bussi import rescaling


def test_factors_are_those_of_the_paper():
    """Equation A7 of Bussi, Donadio and Parrinello, J. Chem. Phys. 126, 014101 (2007), with K̄ = N k T / 2."""
    kinetic, thermal, kept, numbers = 1.7, 0.3, 0.8, np.array([0.4, -1.2, 0.9, 2.0])
    mean = len(numbers) * thermal / 2
    ratio = mean / (len(numbers) * kinetic)
    expected = kept + ratio * (1 - kept) * (numbers**2).sum() + 2 * numbers[0] * np.sqrt(kept * ratio * (1 - kept))
    found = rescaling(np.array([kinetic]), np.array([thermal]), kept, numbers[:1], (numbers[1:] ** 2).sum())
    assert found[0] ** 2 == pytest.approx(expected)
    assert found[0] > 0


def test_velocities_turn_round_where_the_random_number_is_large_and_negative():
    found = rescaling(np.array([0.01]), np.array([1.0]), 0.1, np.array([-3.0]), np.array([1.0]))
    assert found[0] < 0


def test_nothing_moves_what_is_at_rest():
    assert rescaling(np.zeros(1), np.ones(1), 0.5, np.ones(1), np.ones(1)) == 1


def test_bussi_gives_kinetic_energies_of_the_canonical_ensemble():
    """Free particles in 800 structures: K / k T is gamma distributed, with half the degrees of freedom as shape."""
    loop = springs(Bussi(relaxation=0.02), 1.0, [3] * 800, stiffness=0.0, temperature=TEMPERATURE)
    loop.set_velocities(0.1 * loop.snapshot().velocities)  # far from equilibrium
    found = last(loop, 200)
    assert set(found.particles.degrees_of_freedom()) == {6}  # the centre of mass stays
    assert stats.kstest(found.kinetic_energy / THERMAL, stats.gamma(3.0).cdf).pvalue > 1e-4
    drift = found.velocities.reshape(800, 3, 3).mean(1)
    assert np.abs(drift).max() < 1e-15


def test_bussi_relaxes_kinetic_energies_at_its_time():
    """The mean approaches that of equilibrium as exp(-t/τ)."""
    loop = springs(Bussi(relaxation=0.1), 1.0, [4] * 1000, stiffness=0.0, temperature=TEMPERATURE)
    loop.set_velocities(2.0 * loop.snapshot().velocities)
    equilibrium = 4.5 * THERMAL
    before = loop.snapshot().kinetic_energy.mean() / equilibrium - 1
    after = last(loop, 100).kinetic_energy / equilibrium
    error = after.std() / np.sqrt(1000)
    assert after.mean() - 1 == pytest.approx(before * np.exp(-1), abs=4.5 * error)


def test_bussi_samples_oscillators():
    frozen = np.arange(4 * 500) % 4 == 0  # so that centres of mass are not held
    loop = springs(Bussi(relaxation=0.05), 0.2 / FREQUENCY, [4] * 500, temperature=TEMPERATURE, frozen=frozen)
    loop.set_velocities(0.2 * loop.snapshot().velocities)  # too cold
    found = last(loop, 500)
    stretched = 0.5 * STIFFNESS * (found.positions**2).sum(-1) * ~frozen
    total = found.kinetic_energy + stretched.reshape(500, 4).sum(-1)
    # 9 oscillators a structure: the total energy is gamma distributed. Verlet's error of (ωh)²/4 is below the noise.
    assert stats.kstest(total / THERMAL, stats.gamma(9.0).cdf).pvalue > 1e-4


def test_a_step_keeps_kinetic_energies_by_its_relaxation():
    assert Bussi(relaxation=0.5).kept(500.0) == pytest.approx(np.exp(-1))
    with pytest.raises(ValueError, match="relaxation must be > 0 ps and finite, got nan"):
        Bussi(relaxation=float("nan"))


@needs_kernels
def test_a_step_on_the_device_is_that_of_the_host():
    require_same_on_device(Bussi(relaxation=0.02))
