"""The launches of a step against the loop in NumPy, with springs: on a GPU, and under Triton's interpreter."""

import numpy as np
import pytest
import torch
from interpreter import DEVICE, needs_kernels
from on_device import SIZES, buffers_of, device_state, take
from oscillators import last, springs

from torchmdx.dynamics.integrators import Bussi, Langevin, VelocityVerlet
from torchmdx.step.buffer_storage import FAR, NEEDED, NOT_FINITE, OVERFLOW, SPREADS, UNCERTAIN

pytest.importorskip("triton")


@needs_kernels
def test_drifts_are_kept_as_on_the_host():
    """Of structures whose momentum is constant; that of a single atom is thermal."""
    loop = springs(Bussi(relaxation=0.02), 2.0, SIZES, stiffness=0.0, seed=5)
    assert loop.motion.particles.held.tolist() == [True, False, True]
    loop.set_velocities(loop.snapshot().velocities + np.array([0.02, -0.01, 0.03]))
    state = device_state(loop)
    buffers = buffers_of(state)
    for _ in range(7):
        state.launch_advance(buffers)
        state.launch_complete(buffers)
    expected = last(loop, 7)
    np.testing.assert_allclose(state.velocities.cpu(), expected.velocities, rtol=1e-11, atol=1e-13)
    means = [one.mean(0) for one in np.split(expected.velocities, np.cumsum(SIZES)[:-1])]
    np.testing.assert_allclose([means[0], means[2]], [[0.02, -0.01, 0.03]] * 2, atol=1e-14)
    assert np.abs(means[1] - [0.02, -0.01, 0.03]).max() > 1e-3


@needs_kernels
def test_spreads_are_those_of_the_committed_step():
    state = device_state(springs(VelocityVerlet(), 2.0, SIZES))
    buffers = buffers_of(state)
    given = np.random.default_rng(0).random(sum(SIZES) + len(SIZES))
    spread = torch.as_tensor(given, device=DEVICE).split([sum(SIZES), len(SIZES)])
    buffers.doubts = SPREADS
    buffers.outputs |= {"force_spread": spread[0].clone(), "energy_spread": spread[1].clone()}
    take(state, buffers)
    starts = np.concatenate([[0], np.cumsum(SIZES)])[:-1]
    for _ in range(2):
        np.testing.assert_array_equal(state.energy_doubt.cpu(), given[sum(SIZES) :])
        expected = np.maximum.reduceat(given[: sum(SIZES)], starts)
        np.testing.assert_array_equal(state.largest_doubt.cpu(), expected)
        buffers.outputs["flags"][UNCERTAIN] = 1
        buffers.outputs["force_spread"].fill_(9)
        take(state, buffers)


@needs_kernels
@pytest.mark.parametrize("flag", [OVERFLOW, NOT_FINITE, FAR, UNCERTAIN])
@pytest.mark.parametrize("integrator", [Langevin(), Bussi()])
def test_a_bad_evaluation_halts_before_anything_changes(flag, integrator):
    state = device_state(springs(integrator, 2.0, SIZES))
    buffers = buffers_of(state)
    take(state, buffers)
    before = state.block.clone()
    buffers.outputs["flags"][NEEDED] = 10**6  # not a flag
    buffers.outputs["flags"][flag] = 1
    take(state, buffers)
    assert state.control.tolist() == [1, 1]
    buffers.outputs["flags"].zero_()
    take(state, buffers)  # still halted
    assert state.control.tolist() == [1, 1]
    np.testing.assert_array_equal(state.block[2:].cpu(), before[2:].cpu())
    state.control[1] = 0
    take(state, buffers)
    assert state.control.tolist() == [2, 0]


@needs_kernels
@pytest.mark.parametrize(("integrator", "number"), [(VelocityVerlet(), 0), (Langevin(), 1), (Bussi(), 2)])
def test_the_kernel_of_whole_steps_is_told_the_integrator(integrator, number):
    assert device_state(springs(integrator, 2.0, SIZES)).moving(3).thermostat == number
