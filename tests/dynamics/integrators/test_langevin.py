"""Langevin dynamics against what is known of harmonic oscillators and of free particles, in closed form."""

import numpy as np
import pytest
from interpreter import needs_kernels
from on_device import require_same_on_device
from oscillators import FREQUENCY, LONG, MASS, STIFFNESS, TEMPERATURE, THERMAL, last, require_variance, springs
from scipy import stats

from torchmdx.dynamics.integrators import Langevin
from torchmdx.structures.units import BOLTZMANN, FORCE_TO_ACCELERATION


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


def test_a_step_keeps_velocities_by_its_friction():
    assert Langevin(friction=2.0).kept(500.0) == pytest.approx(np.exp(-1))
    with pytest.raises(ValueError, match="friction must be > 0 1/ps and finite, got 0.0"):
        Langevin(friction=0.0)


def test_all_directions_are_degrees_of_freedom():
    assert springs(Langevin(), 1.0, [4]).motion.particles.degrees_of_freedom() == [12]


@needs_kernels
def test_a_step_on_the_device_is_that_of_the_host():
    require_same_on_device(Langevin(friction=30.0))
