"""Whether evaluations are captured: decided by measurement, and told."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import torch
from torch import Tensor

from torchmdx.runtime.kernel_compile import run_compiled
from torchmdx.step.device_memory import release_frames
from torchmdx.step.graph import Graph
from torchmdx.step.results import GraphRefused

log = logging.getLogger(__name__)

MODES = ("auto", "graph", "eager")
# Evaluations before "auto" captures: single points do not pay for a capture.
EAGER_FIRST = 2


def require_mode(mode: str, device: torch.device) -> None:
    """Raises ValueError for an unknown mode, GraphRefused for a graph on a device that has none."""
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    if mode == "graph" and device.type != "cuda":
        raise GraphRefused(f"mode 'graph' needs a CUDA GPU, the potential is on the {device}")


class GraphPolicy:
    """The graphs of a step, by where positions come from ("host", "device"), and why they are there or not."""

    def __init__(self, asked: str, device: torch.device, engine_why: str) -> None:
        self.asked, self.device = asked, device
        self.graphs: dict[str, Graph] = {}
        self.eager_seconds = self.replay_seconds = float("nan")
        self.refused = asked == "eager" or device.type != "cuda"
        if device.type != "cuda":
            self.why = f"no GPU in use: {engine_why}"
        else:
            self.why = "mode 'eager' was asked for" if asked == "eager" else "not captured yet"

    @property
    def mode(self) -> str:
        return "graph" if self.graphs else "eager"

    def due(self, kind: str, num_evaluations: int) -> bool:
        """Whether the coming evaluation, the num_evaluations-th, should capture first."""
        if self.refused or kind in self.graphs:
            return False
        return self.asked == "graph" or num_evaluations > EAGER_FIRST

    def consider(
        self,
        kind: str,
        work: Callable[[], object],
        forces: Callable[[], Tensor],
        judge: Callable[[Tensor], str | None],
    ) -> str | None:
        """Measures `work`, captures it, has a replay judged, and keeps the graph or says why not.

        forces: those of the last run. judge: what speaks against a replay, given the forces of a launch. Returns that.
        Where memory runs out on the way, no graph is kept; an insisted-on one raises torch.cuda.OutOfMemoryError.
        """
        if self.device.type != "cuda" or self.asked == "eager":
            return None
        try:
            # Before the capture: launches beside the graph would need the same memory a second time.
            run_compiled(work, self.device)
            self.eager_seconds = seconds_per_run(work, self.device)
            launched = forces().clone()
            graph = self._record(work)
            return None if graph is None else self._weigh(kind, graph, launched, judge)
        except torch.cuda.OutOfMemoryError as error:
            self._no_memory(error)
            return None

    def _weigh(self, kind: str, graph: Graph, launched: Tensor, judge: Callable[[Tensor], str | None]) -> str | None:
        """Keeps a graph that pays and is right. Returns what the judge says against it."""
        self.replay_seconds = seconds_per_run(graph.replay, self.device)
        saved = self.eager_seconds - self.replay_seconds
        if self.asked == "auto" and saved <= 0:
            self.refuse(f"a replay takes {self.replay_seconds:.2e} s, a launch {self.eager_seconds:.2e} s")
            return None
        reason = judge(launched)
        if reason is not None:
            self.refuse(reason)
            return reason
        self.graphs[kind] = graph
        self.why = (
            f"a replay takes {self.replay_seconds * 1e3:.3f} ms, a launch {self.eager_seconds * 1e3:.3f} ms: the "
            f"capture of {graph.seconds:.1f} s is paid back in {int(graph.seconds / max(saved, 1e-9)) + 1} evaluations"
        )
        return None

    def drop(self) -> list[str]:
        """Forgets all graphs, before the buffers that they hold change; returns their kinds."""
        kinds = list(self.graphs)
        self.graphs.clear()
        return kinds

    def record_again(self, kinds: list[str], work_of: Callable[[str], Callable[[], object]]) -> None:
        """Captures anew what was captured, after buffers have been replaced. Refuses as `consider`."""
        for kind in kinds:
            try:
                graph = self._record(work_of(kind))
            except torch.cuda.OutOfMemoryError as error:
                self._no_memory(error)
                return
            if graph is None:
                return
            self.graphs[kind] = graph

    def give_up(self, error: torch.cuda.OutOfMemoryError) -> bool:
        """Frees the memory of graphs where an evaluation had too little; False where there is none to free."""
        if not self.graphs or self.asked == "graph":
            return False
        self._no_memory(error)
        return True

    def _record(self, work: Callable[[], object]) -> Graph | None:
        try:
            return Graph(work, self.device)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.refuse(f"capture failed: {error}", error)
            return None

    def _no_memory(self, error: torch.cuda.OutOfMemoryError) -> None:
        """No graph from now on: there is no room for it beside the rest. Raises the error if one was insisted on."""
        release_frames(error)
        if self.asked == "graph":
            raise error
        self.graphs.clear()
        self.refuse(f"out of memory with a graph: {str(error).splitlines()[0]}")

    def refuse(self, reason: str, cause: Exception | None = None) -> None:
        """No graph from now on. Raises GraphRefused if one was insisted on."""
        if self.asked == "graph":
            raise GraphRefused(f"the graph was refused: {reason}") from cause
        log.warning("running without a CUDA graph: %s", reason)
        self.refused, self.why = True, reason


def seconds_per_run(run: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    """Median wall-clock seconds of one run, with the stream synchronised after each."""
    times = []
    stream = torch.cuda.current_stream(device)  # synchronising the device would end other threads' recordings
    for _ in range(repeats):
        stream.synchronize()
        start = time.perf_counter()
        run()
        stream.synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]
