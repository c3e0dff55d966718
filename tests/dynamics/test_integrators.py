"""Integrators against what is known of harmonic oscillators and of free particles, in closed form."""

import numpy as np
import pytest
from oscillators import FREQUENCY, MASS, STIFFNESS, last, springs
from scipy import stats

from torchmdx.dynamics.integrators import Bussi, Langevin, VelocityVerlet, integrator_of, kept
from torchmdx.structures.units import BOLTZMANN, FORCE_TO_ACCELERATION

TEMPERATURE = 300.0
THERMAL = BOLTZMANN * TEMPERATURE  # eV
LONG = 0.9 / FREQUENCY  # fs: a timestep at which errors of other schemes are visible


def require_variance(values, expected, deviations=4.5):
    """That independent normal numbers of mean 0 have this variance, within standard deviations of its estimate."""
    found, error = np.mean(values**2), expected * np.sqrt(2 / values.size)
    assert abs(found - expected) < deviations * error, (found / expected, error / expected)


def test_verlet_follows_its_difference_equation():
    """x(t+h) + x(t-h) = (2 - ω²h²) x(t), whose solutions are cosines of a known, slightly higher frequency."""
    loop = springs(VelocityVerlet(), LONG, [1])
    start = loop.snapshot()
    turn = np.arccos(1 - (FREQUENCY * LONG) ** 2 / 2)
    amplitude = start.velocities * LONG / np.sin(turn)
    for step in (1, 2, 57):
        found = last(loop, step - loop.num_steps)
        expected = start.positions * np.cos(step * turn) + amplitude * np.sin(step * turn)
        np.testing.assert_allclose(found.positions, expected, atol=1e-12)


def test_verlet_is_reversible():
    loop = springs(VelocityVerlet(), LONG, [5])
    start = loop.snapshot()
    loop.set_velocities(-last(loop, 50).velocities)
    end = last(loop, 50)
    np.testing.assert_allclose(end.positions, start.positions, atol=1e-13)
    np.testing.assert_allclose(end.velocities, -start.velocities, atol=1e-13)


def test_langevin_samples_positions_of_oscillators_exactly():
    """BAOAB's variance of positions is k T / K for any stable timestep, and that of velocities smaller by (ωh)²/4."""
    loop = springs(Langevin(friction=20.0), LONG, [4000], temperature=TEMPERATURE)
    found = last(loop, 400)  # many times the time in which oscillators forget
    require_variance(found.positions, THERMAL / STIFFNESS)
    factor = 1 - (FREQUENCY * LONG) ** 2 / 4
    require_variance(found.velocities, factor * THERMAL * FORCE_TO_ACCELERATION / MASS)
    for values, scale in ((found.positions, THERMAL / STIFFNESS), (found.velocities, found.velocities.var())):
        assert stats.kstest(values.ravel() / np.sqrt(scale), "norm").pvalue > 1e-4


def test_configurational_temperature_of_oscillators():
    """⟨|∇U|²⟩ / ⟨ΔU⟩ = k T."""
    found = last(springs(Langevin(friction=20.0), LONG, [4000], temperature=TEMPERATURE), 400)
    measured = np.mean(found.forces**2) / STIFFNESS / BOLTZMANN
    assert measured == pytest.approx(TEMPERATURE, abs=4.5 * TEMPERATURE * np.sqrt(2 / found.forces.size))


def test_langevin_forgets_velocities_at_its_friction():
    loop = springs(Langevin(friction=5.0), 2.0, [3000], stiffness=0.0)
    start, thermal = loop.snapshot().velocities, THERMAL * FORCE_TO_ACCELERATION / MASS
    found = last(loop, 100).velocities  # 0.2 ps: one relaxation time
    correlation = np.mean(found * start) / thermal
    assert correlation == pytest.approx(np.exp(-1), abs=4.5 / np.sqrt(found.size))
    require_variance(found, thermal)


def test_kinetic_temperatures_of_langevin_are_those_of_the_thermostat_with_long_timesteps():
    """Of oscillators with ωh = 1, whose velocities at whole steps have a quarter less than the thermal variance."""
    loop = springs(Langevin(friction=50.0), 1.0 / FREQUENCY, [4000], temperature=TEMPERATURE)
    found = last(loop, 400)
    error = np.sqrt(2 / found.velocities.size)
    thermal = THERMAL * FORCE_TO_ACCELERATION / MASS
    assert (found.velocities**2).mean() / thermal == pytest.approx(0.75, abs=0.75 * 4.5 * error)
    assert found.temperature[0] / TEMPERATURE == pytest.approx(1, abs=4.5 * error)


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


@pytest.mark.parametrize("integrator", [VelocityVerlet(), Langevin(), Bussi()])
def test_frozen_atoms_do_not_move(integrator):
    frozen = np.array([False, True, False, True])
    loop = springs(integrator, 1.0, [4], frozen=frozen)
    start = loop.snapshot()
    found = last(loop, 20)
    np.testing.assert_array_equal(found.positions[frozen], start.positions[frozen])
    np.testing.assert_array_equal(found.velocities[frozen], 0.0)
    assert (found.positions[~frozen] != start.positions[~frozen]).all()
    assert found.particles.degrees_of_freedom() == [6]


def test_names_and_objects():
    assert integrator_of("langevin") == Langevin(friction=1.0)
    assert integrator_of(Bussi(0.2)) == Bussi(relaxation=0.2)
    with pytest.raises(ValueError, match="integrator must be one of verlet, langevin, bussi, got 'nose'"):
        integrator_of("nose")
    with pytest.raises(TypeError, match="got 3"):
        integrator_of(3)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Langevin(friction=0.0), "friction must be > 0 1/ps and finite, got 0.0"),
        (lambda: Bussi(relaxation=float("nan")), "relaxation must be > 0 ps and finite, got nan"),
    ],
)
def test_parameters_out_of_range(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_what_a_step_keeps():
    assert kept(Langevin(friction=2.0), 500.0) == pytest.approx(np.exp(-1))
    assert kept(Bussi(relaxation=0.5), 500.0) == pytest.approx(np.exp(-1))
    assert kept(VelocityVerlet(), 500.0) == 1
