"""Restraints on a GPU against those in NumPy: on a GPU, and under Triton's interpreter."""

import numpy as np
import pytest
import torch
from device_loops import at, loops
from interpreter import DEVICE, needs_kernels
from oscillators import last, springs
from random_restraints import many_restraints
from test_device_state import buffers_of, device_state, take
from test_restraint_terms import restrained

from torchmdx import System
from torchmdx.dynamics.integrators import VelocityVerlet
from torchmdx.dynamics.restraint_terms import RestraintError, RestraintTerms
from torchmdx.dynamics.restraints import Angle, Distance, Position, Torsion

pytest.importorskip("triton")


@needs_kernels
def test_steps_with_springs_are_those_of_the_host():
    rng = np.random.default_rng(1)
    loop = springs(VelocityVerlet(), 2.0, [150, 40])
    start = 2 * rng.normal(size=(190, 3))
    loop = restrained(loop, RestraintTerms.of(many_restraints(5, rng), loop.motion.particles, start), start)
    state = device_state(loop)
    assert float(state.restraint_energy.min()) > 0
    buffers = buffers_of(state)
    for _ in range(4):
        take(state, buffers)
    expected = last(loop, 4)
    for name in ("positions", "velocities", "forces", "energy", "restraint_energy"):
        np.testing.assert_allclose(getattr(state, name).cpu(), getattr(expected, name), rtol=1e-8, atol=1e-10)


@needs_kernels
@pytest.mark.parametrize("integrator", ["langevin", "bussi"])
def test_a_restrained_run_is_that_of_the_host(make_potential, ethanol, integrator):
    potential = make_potential(dtype=torch.float32).to(DEVICE)
    restraints = [Torsion((2, 0, 1, 3), [100.0, -60.0], 2.0), Distance((0, 2), 2.0, 5.0), Position((1,), 3.0)]
    systems = [System.from_ase(ethanol)] * 2
    host, device = loops(potential, systems, integrator=integrator, restraints=restraints)
    expected, found = at(host, 6), at(device, 6)
    for name in ("positions", "velocities", "forces", "energy", "restraint_energy"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-4)
    device.restore(found)
    again = device.snapshot()
    for name in ("forces", "restraint_energy"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
    assert (found.restraint_energy > 0.1).all()


@needs_kernels
def test_a_run_that_loses_a_gradient_ends_at_the_step_before(make_potential, ethanol):
    potential = make_potential(dtype=torch.float32).to(DEVICE)
    restraint = Angle((0, 1, 2), 90.0, 1e-300)
    _, device = loops(potential, [System.from_ase(ethanol)], integrator="verlet", restraints=[restraint], mode="eager")
    kept = at(device, 2)
    evaluate = device.state.restraints.launch

    def in_line(buffers):
        buffers.inputs["positions"][:3] = torch.tensor([[0.0, 0, 0], [1, 0, 0], [2, 0, 0]])
        evaluate(buffers)

    device.state.restraints.launch = in_line
    with pytest.raises(RestraintError, match="the angle of atoms 0, 1, 2 has no gradient: three atoms are in line"):
        at(device, 5)
    found = device.snapshot()
    assert found.step == 2
    np.testing.assert_array_equal(found.positions, kept.positions)
    device.state.restraints.launch = evaluate
    assert at(device, 5).step == 5
