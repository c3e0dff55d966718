"""Runs on a GPU that halt: they are repaired and lose nothing, or end at the step before."""

import numpy as np
import pytest
import torch
from device_loops import assert_same, at, loops
from interpreter import DEVICE, needs_kernels

from torchmdx import CapturedStep, Ensemble
from torchmdx.dynamics.restraints import Distance
from torchmdx.step.results import NonFiniteError, SpreadError

pytest.importorskip("triton")


@needs_kernels
def test_an_overflow_halts_grows_and_loses_nothing(potential32, systems):
    _, whole = loops(potential32, systems)
    _, small = loops(potential32, systems)
    stops = [2, 4, 6, 9]
    expected = list(whole.snapshots(iter(stops)))
    step = small.step
    step.search._make(step.ordered, step.search.backend, 5)
    step.engine.reserve(step.search.capacity)
    found = list(small.snapshots(iter(stops)))
    assert step.num_recoveries == 1
    for one, two in zip(found, expected, strict=True):
        if DEVICE == "cpu":
            assert_same(one, two)
        else:  # for another capacity, sums may be made in another order
            np.testing.assert_allclose(one.positions, two.positions, atol=1e-6)
            np.testing.assert_allclose(one.energy, two.energy, atol=1e-4)


@needs_kernels
def test_few_steps_are_launched_after_a_halt(potential32, systems, monkeypatch):
    monkeypatch.setattr("torchmdx.dynamics.device_loop.CHECK_EVERY", 2)
    _, whole = loops(potential32, systems)
    _, small = loops(potential32, systems, steps_per_replay=2)
    expected = at(whole, 30)
    small.step.search._make(small.step.ordered, small.step.search.backend, 5)
    small.step.engine.reserve(small.step.search.capacity)
    launched, launch = [], small.replays.launch

    def counted(count):
        launched.append(count)
        launch(count)

    monkeypatch.setattr(small.replays, "launch", counted)
    found = at(small, 30)
    assert small.num_recoveries == 1
    assert launched == [4] * 2 + [4] * 7 + [2]  # the halt in the first four steps is seen at the second read
    np.testing.assert_allclose(found.positions, expected.positions, atol=1e-6)


@needs_kernels
def test_atoms_that_are_too_far_out_choose_a_new_frame(potential32, systems):
    _, whole = loops(potential32, systems)
    _, far = loops(potential32, systems)
    expected = at(whole, 6)
    far.step.buffers.far.fill_(0.1)
    found = at(far, 6)
    assert float(far.step.buffers.far) > 1
    np.testing.assert_allclose(found.positions, expected.positions, atol=1e-6)


@needs_kernels
def test_results_that_are_not_finite_end_the_run_at_the_step_before(potential32, systems):
    _, loop = loops(potential32, systems)
    kept = at(loop, 4)
    velocities = kept.velocities.copy()
    velocities[1] = 1e200
    loop.set_velocities(velocities)
    for _ in range(2):
        with pytest.raises(NonFiniteError, match="evaluation 5: .* the first is atom 1"):
            at(loop, 9)
        found = loop.snapshot()
        assert found.step == 4
        np.testing.assert_array_equal(found.positions, kept.positions)
    loop.set_velocities(kept.velocities)
    _, whole = loops(potential32, systems)
    assert_same(at(loop, 9), at(whole, 9))


@needs_kernels
@pytest.mark.parametrize("pulled", [False, True])
def test_an_ensemble_that_disagrees_ends_the_run_at_the_step_before(make_potential, systems, pulled):
    small = dict(dtype=torch.float32, num_layers=0, num_channels=4, num_radial=4)
    ensemble = Ensemble([make_potential(seed=seed, **small) for seed in (1, 2)]).to(DEVICE)
    options = dict(integrator="verlet", temperature=[300.0, 3000.0], timestep=0.5)
    options["restraints"] = [Distance((0, 1), 3.0, 5.0)] if pulled else []
    host, device = loops(ensemble, systems, **options)
    stops = list(range(1, 21))
    expected, found = ([loop.snapshot(), *loop.snapshots(iter(stops))] for loop in (host, device))
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.energy_spread, two.energy_spread, rtol=1e-3)
        np.testing.assert_allclose(one.largest_force_spread, two.largest_force_spread, rtol=1e-3)
    largest = np.maximum.accumulate([one.largest_force_spread.max() for one in expected])
    step = int(np.diff(largest).argmax()) + 1  # the first that exceeds what was before by so much
    limit = (largest[step - 1] + largest[step]) / 2
    loop = loops(ensemble, systems, **options)[1]
    loop.step.buffers.most.fill_(limit)
    for _ in range(2):
        with pytest.raises(SpreadError, match=f"^step {step}: .* of structure [01]$") as caught:
            list(loop.snapshots(iter([3, 30])))
        kept, frame = loop.snapshot(), caught.value.frame
        assert kept.step == step - 1
        np.testing.assert_array_equal(kept.positions, found[step - 1].positions)
        np.testing.assert_array_equal(kept.largest_force_spread, found[step - 1].largest_force_spread)
        alone = CapturedStep(ensemble, systems[caught.value.structure], mode="eager")(frame.positions)
        np.testing.assert_allclose(frame.forces, alone.forces, atol=1e-4)
        assert frame.force_spread.max() > limit
    loop.step.buffers.most.fill_(1e9)
    assert_same(at(loop, 20), found[20])


@needs_kernels
def test_an_interrupted_launch_is_settled(potential32, systems, monkeypatch):
    monkeypatch.setattr("torchmdx.engines.plan.few_atoms.MOST_ONE_LAUNCH", 0)  # which has no launch of an evaluation
    _, whole = loops(potential32, systems, mode="eager")
    _, loop = loops(potential32, systems, mode="eager")
    expected = at(whole, 7)
    at(loop, 2)
    run, count = loop.step._launch, 0

    def interrupted(kind):
        nonlocal count
        count += 1
        if count == 3:
            loop.step._launch = run
            raise KeyboardInterrupt
        run(kind)

    loop.step._launch = interrupted
    with pytest.raises(KeyboardInterrupt):
        at(loop, 7)
    np.testing.assert_allclose(at(loop, 7).positions, expected.positions, atol=1e-7)


@needs_kernels
def test_a_step_that_never_fits_is_an_error(potential32, systems, monkeypatch):
    monkeypatch.setattr("torchmdx.engines.plan.few_atoms.MOST_ONE_LAUNCH", 0)  # which has no launch of an evaluation
    _, loop = loops(potential32, systems)
    loop.state.launch_advance(loop.step.buffers)
    refuse = loop.step._launch

    def far(kind):
        refuse(kind)
        from torchmdx.step.buffer_storage import FAR

        loop.step.buffers.outputs["flags"][FAR] = 1

    loop.step._launch = far
    with pytest.raises(RuntimeError, match="step 1 failed 8 times"):
        at(loop, 2)
