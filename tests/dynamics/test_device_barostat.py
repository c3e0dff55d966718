"""Constant pressure on a GPU against the loop in NumPy: with graphs, or under Triton's interpreter with launches."""

import device_loops
import numpy as np
import pytest
from device_loops import assert_same, at
from interpreter import needs_kernels
from test_barostat import crystal

from torchmdx.dynamics.barostat import CellError, CellRescaling
from torchmdx.dynamics.restraints import Distance

pytest.importorskip("triton")

BAROSTAT = CellRescaling(pressure=2e4, relaxation=0.05, compressibility=1e-5)


def loops(potential, *, integrator="langevin", barostat=BAROSTAT, **options):
    """(loop on the host, loop on the device), at the same start."""
    restraints = [Distance((0, 1), [2.5, 2.9], [0.5, 1.0])]
    own = dict(timestep=0.5, integrator=integrator, barostat=barostat, restraints=restraints)
    return device_loops.loops(potential, [crystal(), crystal(3.2)], **own, **options)


@needs_kernels
@pytest.mark.parametrize("integrator", ["langevin", "bussi"])
@pytest.mark.parametrize("skin", [0.0, 0.4])
def test_steps_are_those_of_the_host(potential32, integrator, skin):
    host, device = loops(potential32, integrator=integrator, skin=skin)
    start, expected, found = host.snapshot(), at(host, 8), at(device, 8)
    assert (np.abs(found.volume / start.volume - 1) > 1e-3).all()
    for name in ("cell", "positions", "virial", "restraint_energy", "energy", "forces"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=2e-4)
    np.testing.assert_allclose(found.volume, expected.volume, rtol=1e-5)
    np.testing.assert_allclose(found.velocities, expected.velocities, atol=1e-5)


@pytest.mark.nightly
@needs_kernels
def test_a_restart_and_other_replays_give_the_same_bits(potential32):
    _, one = loops(potential32, steps_per_replay=1)
    _, many = loops(potential32, steps_per_replay=4)
    kept, whole = one.snapshots(iter([3, 10]))
    assert_same(at(many, 10), whole)
    np.testing.assert_array_equal(at(many, 10).cell, whole.cell)
    one.restore(kept)
    again = at(one, 10)
    assert_same(again, whole)
    for name in ("cell", "virial", "restraint_energy"):
        np.testing.assert_array_equal(getattr(again, name), getattr(whole, name))


@needs_kernels
def test_an_overflow_keeps_the_cell_of_the_step_before(potential32):
    _, whole = loops(potential32)
    _, small = loops(potential32)
    expected = at(whole, 7)
    at(small, 3)
    step = small.step
    small.replays.drop()
    step.search._make(step.ordered, step.search.backend, 5)
    step.engine.reserve(step.search.capacity)
    found = at(small, 7)
    assert step.num_recoveries >= 1
    np.testing.assert_allclose(found.cell, expected.cell, atol=1e-6)
    np.testing.assert_allclose(found.positions, expected.positions, atol=1e-5)


@needs_kernels
def test_a_volume_that_jumps_is_an_error_that_keeps_the_step_before(potential32):
    _, device = loops(potential32, barostat=CellRescaling(pressure=1e7, relaxation=1e-4, compressibility=1e-3))
    start = device.snapshot()
    for _ in range(2):
        with pytest.raises(CellError, match="volume of structure 0, .* Å³, must change by less than a factor of two"):
            at(device, 5)
        found = device.snapshot()
        assert found.step == 0
        np.testing.assert_array_equal(found.cell, start.cell)
        np.testing.assert_array_equal(found.positions, start.positions)
    device.state.barostat[0] = 0.0  # of the same run, whose next step is good
    assert at(device, 2).step == 2
