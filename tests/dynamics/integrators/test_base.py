"""What integrators state of themselves agrees with what their steps do."""

import numpy as np
import pytest
from oscillators import last, springs
from outside_integrator import Andersen

from torchmdx.dynamics.integrators import KINDS, Bussi, Integrator, Langevin, VelocityVerlet
from torchmdx.dynamics.integrators.base import require_positive


@pytest.mark.parametrize("kind", KINDS.values())
def test_momentum_and_energy_are_kept_where_an_integrator_says_so(kind):
    loop = springs(kind(), 1.0, [200], stiffness=0.0)  # enough atoms for rare events
    before, after = loop.snapshot(), last(loop, 50)
    moved = np.abs(after.velocities.mean(0) - before.velocities.mean(0)).max()
    assert bool(moved < 1e-14) is kind.keeps_momentum
    changed = np.abs(after.kinetic_energy / before.kinetic_energy - 1).max()
    assert bool(changed < 1e-12) is kind.constant_energy


@pytest.mark.parametrize("kind", KINDS.values())
def test_a_step_does_not_write_into_what_it_is_given(kind):
    motion = springs(kind(), 1.0, [3, 2]).motion
    step, given = motion.integrator.on_host(motion), np.random.default_rng(0).normal(size=(3, 5, 3))
    before = given.copy()
    _, velocities = step.move(1, *given)
    step.complete(1, velocities, given[2])
    np.testing.assert_array_equal(given, before)


def test_those_without_a_step_on_a_gpu_say_so():
    kinds = (VelocityVerlet, Langevin, Bussi)
    assert all(kind().has_device_step for kind in kinds)
    assert [kind.one_launch for kind in kinds] == [0, 1, 2]
    assert not Andersen().has_device_step
    with pytest.raises(NotImplementedError, match=r"the integrator Andersen\(rate=1.0\) has no step on a GPU"):
        Andersen().on_device(None)
    with pytest.raises(TypeError, match="abstract"):
        Integrator()


def test_parameters_are_positive_and_finite():
    require_positive("rate", 0.1, "1/ps")
    with pytest.raises(ValueError, match="rate must be > 0 1/ps and finite, got inf"):
        require_positive("rate", float("inf"), "1/ps")
