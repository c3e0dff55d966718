"""Recorder: work on fixed buffers, launched a few times, then recorded in a CUDA graph and replayed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchmdx.runtime.device_guard import capture_lock
from torchmdx.runtime.own_streams import own_stream

log = logging.getLogger(__name__)

# Runs that are launched before one is recorded: they compile kernels and settle what is set up at the first use.
LAUNCHED = 2
MOST_FAILURES = 3


@dataclass(eq=False)
class Recorded:
    """How often some work has run, and its graph once there is one."""

    runs: int = 0
    graph: torch.cuda.CUDAGraph | None = None
    result: Tensor | None = None


Graphs = dict[str, Recorded]


class Recorder:
    """Runs work of a kind on buffers whose `graphs` it keeps there. Graphs share one pool of memory.

    Work must read nothing on the host and return one tensor, whose values `run` hands out in a tensor of its own. A
    recording that fails is tried again, since what other threads do at that moment can be the reason; after
    MOST_FAILURES that is said once, and everything is launched from then on. `num_replays` counts.
    """

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self.why_not: str | None = None
        self.num_replays = self.num_failures = 0

    def run(self, graphs: Graphs, kind: str, work: Callable[[], Tensor]) -> Tensor:
        """The result of the work, from a replay where there is one."""
        recorded = graphs.setdefault(kind, Recorded())
        if recorded.graph is None and recorded.runs >= LAUNCHED and self.why_not is None:
            self._record(recorded, work)
        recorded.runs += 1
        if recorded.graph is None:
            recorded.result = work()
            return recorded.result
        assert recorded.result is not None
        recorded.graph.replay()
        self.num_replays += 1
        return recorded.result.clone()

    def _record(self, recorded: Recorded, work: Callable[[], Tensor]) -> None:
        graph = torch.cuda.CUDAGraph()
        assert recorded.result is not None  # of a run that was launched
        result = torch.empty_like(recorded.result)  # outside the pool, which other graphs use again
        try:
            # Of this thread alone: another one reads ahead meanwhile, and pins memory.
            # On a stream of this GPU: that of torch.cuda.graph is on the GPU that first recorded.
            with (
                capture_lock,
                torch.cuda.graph(
                    graph, pool=self.pool, stream=own_stream(result.device), capture_error_mode="thread_local"
                ),
            ):
                result.copy_(work())
        except RuntimeError as error:
            self.num_failures += 1
            with capture_lock:
                torch.cuda.synchronize(result.device)
            if self.num_failures < MOST_FAILURES:
                return
            self.why_not = str(error).splitlines()[0]
            log.warning("training steps are launched one kernel at a time, they cannot be recorded: %s", self.why_not)
            return
        recorded.graph, recorded.result = graph, result
