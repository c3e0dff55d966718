"""The loop on a GPU against the loop on the host: on a GPU with graphs, under Triton's interpreter with launches."""

import numpy as np
import pytest
import torch
from device_loops import FIELDS, assert_same, at, loops
from interpreter import needs_kernels

from torchmdx import Potential, TensorNetConfig
from torchmdx.step.results import NonFiniteError

pytest.importorskip("triton")


@needs_kernels
@pytest.mark.parametrize("integrator", ["verlet", "langevin", "bussi"])
def test_steps_are_those_of_the_host(potential32, systems, integrator):
    host, device = loops(potential32, systems, integrator=integrator)
    expected, found = at(host, 8), at(device, 8)
    for name in FIELDS:
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-4)
    np.testing.assert_allclose(found.positions, expected.positions, atol=1e-6)


@needs_kernels
def test_bits_do_not_depend_on_the_steps_of_a_replay_or_on_stops(potential32, systems):
    _, one = loops(potential32, systems, steps_per_replay=1)
    _, many = loops(potential32, systems, steps_per_replay=5)
    *_, whole = one.snapshots(iter([13]))
    found = list(many.snapshots(iter([2, 3, 11, 13])))
    assert [snapshot.step for snapshot in found] == [2, 3, 11, 13]
    assert_same(found[-1], whole)


@pytest.mark.gpu
def test_graphs_are_used_and_steps_are_those_of_launches(potential32, systems):
    _, graphs = loops(potential32, systems, mode="graph", steps_per_replay=4)
    _, launches = loops(potential32, systems, mode="eager", steps_per_replay=4)
    assert_same(at(graphs, 26), at(launches, 26))
    assert graphs.replays.captured
    assert set(graphs.replays.graphs) == {4, 1}
    assert "as a CUDA graph" in graphs.why


on_hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


@pytest.mark.gpu
@pytest.mark.skipif(not on_hopper, reason="needs a GPU of the architecture sm_90")
@pytest.mark.parametrize("integrator", ["verlet", "langevin", "bussi"])
def test_steps_inside_one_launch_are_those_of_the_host_whatever_their_number(systems, integrator):
    torch.manual_seed(0)
    potential = Potential(TensorNetConfig()).requires_grad_(False).cuda()
    host, device = loops(potential, systems, integrator=integrator, frozen=[2], steps_per_replay=4)
    assert device.step.engine.model.one_launch.serves_steps
    expected, found = at(host, 9), at(device, 9)
    np.testing.assert_allclose(found.positions, expected.positions, atol=1e-6)
    np.testing.assert_allclose(found.velocities, expected.velocities, atol=1e-6)
    np.testing.assert_allclose(found.forces, expected.forces, atol=1e-4)
    np.testing.assert_allclose(found.energy, expected.energy, atol=1e-4)
    _, single = loops(potential, systems, integrator=integrator, frozen=[2], steps_per_replay=1)
    assert_same(at(single, 9), found)
    _, small = loops(potential, systems, integrator=integrator, frozen=[2], steps_per_replay=4)
    small.step.search._make(small.step.ordered, small.step.search.backend, 5)
    small.step.engine.reserve(small.step.search.capacity)
    assert_same(at(small, 9), found)
    assert small.num_recoveries == 1
    small.step.buffers.far.fill_(0.1)
    np.testing.assert_allclose(at(small, 12).positions, at(device, 12).positions, atol=1e-6)
    velocities = small.snapshot().velocities.copy()
    velocities[1] = 1e200
    small.set_velocities(velocities)
    with pytest.raises(NonFiniteError, match="evaluation 13: .* the first is atom 1"):
        at(small, 20)
    assert small.snapshot().step == 12
