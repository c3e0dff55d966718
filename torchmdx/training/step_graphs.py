"""StepGraphs: work on fixed buffers, launched a few times, then captured as a CUDA graph and replayed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchmdx.runtime.device_guard import capture_lock
from torchmdx.runtime.own_streams import own_stream

log = logging.getLogger(__name__)

# Runs before a capture: they compile kernels and initialize what is set up on first use.
WARM_UP_RUNS = 2
MAX_FAILURES = 3


@dataclass(eq=False)
class GraphedWork:
    """The number of runs of some work, and its graph once it is captured."""

    runs: int = 0
    graph: torch.cuda.CUDAGraph | None = None
    result: Tensor | None = None


Graphs = dict[str, GraphedWork]


class StepGraphs:
    """Runs functions on fixed buffers, and captures each as a CUDA graph. All graphs share one memory pool.

    A function must not read the device from the host, and must return one tensor; `run` returns a copy of it. A failed
    capture is retried, because activity of other threads can be the cause; after MAX_FAILURES failures a warning is
    logged and everything runs without graphs. `num_replays` counts replays.
    """

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self.why_not: str | None = None
        self.num_replays = self.num_failures = 0

    def run(self, graphs: Graphs, kind: str, function: Callable[[], Tensor]) -> Tensor:
        """The result of the function, from a replay if `graphs`, which belong to its buffers, hold its graph."""
        work = graphs.setdefault(kind, GraphedWork())
        if work.graph is None and work.runs >= WARM_UP_RUNS and self.why_not is None:
            self._capture(work, function)
        work.runs += 1
        if work.graph is None:
            work.result = function()
            return work.result
        assert work.result is not None
        work.graph.replay()
        self.num_replays += 1
        return work.result.clone()

    def _capture(self, work: GraphedWork, function: Callable[[], Tensor]) -> None:
        graph = torch.cuda.CUDAGraph()
        assert work.result is not None  # from a run without graph
        result = torch.empty_like(work.result)  # outside the pool, whose memory other graphs reuse
        try:
            # thread_local: another thread reads batches ahead and pins memory meanwhile.
            # A stream of this GPU: the default stream of torch.cuda.graph is on the GPU of the first capture.
            with (
                capture_lock,
                torch.cuda.graph(
                    graph, pool=self.pool, stream=own_stream(result.device), capture_error_mode="thread_local"
                ),
            ):
                result.copy_(function())
        except RuntimeError as error:
            self.num_failures += 1
            with capture_lock:
                torch.cuda.synchronize(result.device)
            if self.num_failures < MAX_FAILURES:
                return
            self.why_not = str(error).splitlines()[0]
            log.warning(
                "training steps could not be captured as CUDA graphs and run kernel by kernel: %s", self.why_not
            )
            return
        work.graph, work.result = graph, result
