"""Constants of the equations of motion."""

import numpy as np
import pytest
from oscillators import MASS, last, springs

from torchmdx.dynamics.integrators import Bussi, Langevin, VelocityVerlet
from torchmdx.structures.units import FORCE_TO_ACCELERATION

INTEGRATORS = [VelocityVerlet(), Langevin(), Bussi()]


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_frozen_atoms_do_not_move(integrator):
    frozen = np.array([False, True, False, True])
    loop = springs(integrator, 1.0, [4], frozen=frozen)
    start = loop.snapshot()
    found = last(loop, 20)
    np.testing.assert_array_equal(found.positions[frozen], start.positions[frozen])
    np.testing.assert_array_equal(found.velocities[frozen], 0.0)
    assert (found.positions[~frozen] != start.positions[~frozen]).all()
    assert found.particles.degrees_of_freedom() == [6]


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_what_half_a_timestep_adds(integrator):
    motion = springs(integrator, 3.0, [2], frozen=np.array([False, True])).motion
    np.testing.assert_allclose(motion.kicks(), [[1.5 * FORCE_TO_ACCELERATION / MASS], [0.0]])
    assert motion.thermal_kick == (motion.half_kick if isinstance(integrator, Langevin) else 0.0)


def test_a_structure_begins_to_count_where_its_momentum_leaves_freedom():
    assert springs(Bussi(), 1.0, [3, 1, 2]).motion.first_counted().tolist() == [1, 3, 5]
    assert springs(Langevin(), 1.0, [3, 1, 2]).motion.first_counted().tolist() == [0, 3, 4]
