"""Graphs of several steps: refused when they disagree with launches, and never the cause of another trajectory."""

import logging

import numpy as np
import pytest
import torch
from interpreter import DEVICE, needs_kernels

from torchmdx import Dynamics, System
from torchmdx.step.results import GraphRefused

pytest.importorskip("triton")


@pytest.fixture
def make(make_potential, ethanol):
    potential = make_potential(dtype=torch.float32).to(DEVICE)
    return lambda mode: Dynamics(potential, System.from_ase(ethanol), mode=mode, steps_per_replay=4)


@needs_kernels
def test_each_launched_step_is_an_advance_an_evaluation_and_an_end(make, monkeypatch):
    monkeypatch.setattr("torchmdx.engines.plan.few_atoms.MOST_ONE_LAUNCH", 0)  # one launch does all three
    from torchmdx.dynamics.device_state import DeviceState
    from torchmdx.dynamics.replays import Replays

    dynamics = make("eager")
    calls = []

    class Recorded(DeviceState):
        def launch_advance(self, buffers):
            calls.append("advance")

        def launch_complete(self, buffers):
            calls.append("complete")

    replays = Replays(dynamics.step, Recorded(dynamics.motion, torch.device(DEVICE)), 4, "eager")
    replays.launch(1)  # runs repeatedly where kernels have to be compiled
    calls.clear()
    replays.launch(6)
    assert calls == ["advance", "complete"] * 6
    assert not replays.captured
    assert replays.why == "steps are launched one after the other: mode 'eager' was requested"


@pytest.mark.gpu
def test_a_graph_that_disagrees_is_refused(make, monkeypatch, caplog):
    from torchmdx.step.graph import Graph

    monkeypatch.setattr(Graph, "replay", lambda self: None)  # does nothing: forces stay those of the start
    with pytest.raises(GraphRefused, match="differ by .* between a replay and launches"):
        make("graph").run(8)
    dynamics = make("auto")
    with caplog.at_level(logging.WARNING):
        found = dynamics.run(8)
    assert "running without a CUDA graph" in caplog.text
    np.testing.assert_array_equal(found.positions, make("eager").run(8).positions)
    assert "between a replay and launches" in dynamics.why


@pytest.mark.gpu
def test_a_capture_does_not_move_anything(make):
    dynamics = make("graph")
    before = dynamics.snapshot()
    dynamics.loop.replays._graph(4)
    after = dynamics.snapshot()
    assert after.step == 0
    np.testing.assert_array_equal(after.positions, before.positions)
    np.testing.assert_array_equal(after.velocities, before.velocities)
