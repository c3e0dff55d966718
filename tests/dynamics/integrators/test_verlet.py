"""Velocity Verlet against what is known of harmonic oscillators in closed form."""

import numpy as np
from interpreter import needs_kernels
from on_device import require_same_on_device
from oscillators import FREQUENCY, LONG, last, springs

from torchmdx.dynamics.integrators import VelocityVerlet


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


def test_degrees_of_freedom_are_those_without_the_centre_of_mass():
    assert springs(VelocityVerlet(), 1.0, [4]).motion.particles.degrees_of_freedom() == [9]


@needs_kernels
def test_a_step_on_the_device_is_that_of_the_host():
    require_same_on_device(VelocityVerlet())
