"""When steps are captured, and what happens if a capture fails. Captures themselves are tested on GPUs."""

from contextlib import contextmanager

import pytest
import torch

from torchmdx.training import step_graphs
from torchmdx.training.step_graphs import MAX_FAILURES, WARM_UP_RUNS, StepGraphs


class Replayed:
    """Stands in for a CUDA graph: counts its replays."""

    def __init__(self):
        self.count = 0

    def replay(self):
        self.count += 1


@pytest.fixture
def failures(monkeypatch):
    """How many captures fail before one succeeds: a list of one number, set by the test."""
    left = [0]

    @contextmanager
    def graph(made, **options):
        assert options["capture_error_mode"] == "thread_local"
        yield
        if left[0] > 0:
            left[0] -= 1
            raise RuntimeError("operation not permitted when stream is capturing\nmore lines")

    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Replayed)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(step_graphs, "own_stream", lambda device: None)
    return left


def ran(count):
    made, graphs = StepGraphs(), {}
    for _ in range(count):
        assert made.run(graphs, "step", lambda: torch.ones(2)).tolist() == [1.0, 1.0]
    return made


@pytest.mark.parametrize("failed", range(MAX_FAILURES))
def test_a_failed_capture_is_retried(failures, failed, caplog):
    failures[0] = failed
    made = ran(WARM_UP_RUNS + failed + 4)
    assert (made.num_replays, made.why_not) == (4, None)
    assert not caplog.records


def test_after_too_many_failures_steps_are_launched_with_one_warning(failures, caplog):
    failures[0] = 100
    made = ran(WARM_UP_RUNS + 20)
    assert made.num_replays == 0
    assert 100 - failures[0] == MAX_FAILURES
    (record,) = caplog.records
    assert record.getMessage() == (
        "training steps could not be captured as CUDA graphs and run kernel by kernel: "
        "operation not permitted when stream is capturing"
    )
