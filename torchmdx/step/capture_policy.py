"""Decides by measurement whether evaluations are captured, and records the reason."""

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

Outputs = dict[str, Tensor]

MODES = ("auto", "graph", "eager")
# Evaluations before "auto" captures: a capture takes longer than a few evaluations.
EAGER_FIRST = 2


def require_mode(mode: str, device: torch.device) -> None:
    """Raises ValueError for an unknown mode, GraphRefused for mode "graph" on a device without CUDA."""
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    if mode == "graph" and device.type != "cuda":
        raise GraphRefused(f"mode 'graph' needs a CUDA GPU, got a potential on the {device}")


class GraphPolicy:
    """The graphs of a step, by where positions come from ("host", "device"), and why they were kept or refused."""

    def __init__(self, asked: str, device: torch.device, engine_why: str) -> None:
        self.asked, self.device = asked, device
        self.graphs: dict[str, Graph] = {}
        self.eager_seconds = self.replay_seconds = float("nan")
        self.refused = asked == "eager" or device.type != "cuda"
        if device.type != "cuda":
            self.why = f"no GPU in use: {engine_why}"
        else:
            self.why = "mode 'eager' was requested" if asked == "eager" else "not captured yet"

    @property
    def mode(self) -> str:
        return "graph" if self.graphs else "eager"

    def due(self, kind: str, num_evaluations: int) -> bool:
        """Whether to capture before the evaluation with this number, counted from 1."""
        if self.refused or kind in self.graphs:
            return False
        return self.asked == "graph" or num_evaluations > EAGER_FIRST

    def consider(
        self,
        kind: str,
        work: Callable[[], object],
        outputs: Callable[[], Outputs],
        judge: Callable[[Outputs], str | None],
    ) -> str | None:
        """Measures `work`, captures it, audits a replay, and keeps the graph if it is faster and right.

        Args:
            outputs: Returns a copy of what the last run gave.
            judge: Given that of an eager run, returns why the replay is wrong, or None; `consider` returns the same. If
                memory runs out, no graph is kept; with mode "graph" torch.cuda.OutOfMemoryError is raised.
        """
        if self.device.type != "cuda" or self.asked == "eager":
            return None
        try:
            # Before the capture: eager launches in addition to a graph would need the same memory a second time.
            run_compiled(work, self.device)
            self.eager_seconds = seconds_per_run(work, self.device)
            launched = outputs()
            graph = self._record(work)
            return None if graph is None else self._weigh(kind, graph, launched, judge)
        except torch.cuda.OutOfMemoryError as error:
            self._no_memory(error)
            return None

    def _weigh(self, kind: str, graph: Graph, launched: Outputs, judge: Callable[[Outputs], str | None]) -> str | None:
        """Keeps a graph that is faster and passes its audit. Returns why the audit failed, None if it passed."""
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
        """Drops all graphs, before the buffers that they use change; returns their kinds."""
        kinds = list(self.graphs)
        self.graphs.clear()
        return kinds

    def record_again(self, kinds: list[str], work_of: Callable[[str], Callable[[], object]]) -> None:
        """Captures graphs of these kinds after buffers have been replaced. Refuses as `consider`."""
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
        """Frees the memory of graphs after an evaluation ran out of memory; False if there are no graphs to free."""
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
        """Stops capturing for lack of memory. Raises the error with mode "graph"."""
        release_frames(error)
        if self.asked == "graph":
            raise error
        self.graphs.clear()
        self.refuse(f"out of memory with a graph: {str(error).splitlines()[0]}")

    def refuse(self, reason: str, cause: Exception | None = None) -> None:
        """Stops capturing. Raises GraphRefused with mode "graph"."""
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
