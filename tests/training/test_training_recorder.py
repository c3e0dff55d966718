"""When steps are recorded, and what happens where that fails. Recordings themselves are tested on GPUs."""

from contextlib import contextmanager

import pytest
import torch

from torchmdx.training import recorder
from torchmdx.training.recorder import LAUNCHED, MOST_FAILURES, Recorder


class Replayed:
    """In place of a CUDA graph: counts its replays."""

    def __init__(self):
        self.count = 0

    def replay(self):
        self.count += 1


@pytest.fixture
def failures(monkeypatch):
    """How many recordings fail before one succeeds; a list of one number, which a test sets."""
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
    monkeypatch.setattr(recorder, "own_stream", lambda device: None)
    return left


def ran(count):
    made, graphs = Recorder(), {}
    for _ in range(count):
        assert made.run(graphs, "step", lambda: torch.ones(2)).tolist() == [1.0, 1.0]
    return made


@pytest.mark.parametrize("failed", range(MOST_FAILURES))
def test_a_recording_that_fails_now_and_then_is_tried_again(failures, failed, caplog):
    failures[0] = failed
    made = ran(LAUNCHED + failed + 4)
    assert (made.num_replays, made.why_not) == (4, None)
    assert not caplog.records


def test_after_some_failures_steps_are_launched_and_that_is_said_once(failures, caplog):
    failures[0] = 100
    made = ran(LAUNCHED + 20)
    assert made.num_replays == 0
    assert 100 - failures[0] == MOST_FAILURES
    (record,) = caplog.records
    assert record.getMessage() == (
        "training steps are launched one kernel at a time, they cannot be recorded: "
        "operation not permitted when stream is capturing"
    )
