"""Steps of a run on a GPU: replayed from CUDA graphs of several steps, or launched."""

from __future__ import annotations

import logging

import torch

from torchmdx.dynamics.device_blocks import DeviceBlocks
from torchmdx.dynamics.device_exchange import DeviceExchange
from torchmdx.dynamics.device_state import DeviceState
from torchmdx.runtime.kernel_compile import run_compiled
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.comparison import TOLERANCES, relative_error
from torchmdx.step.device_memory import memory_explained
from torchmdx.step.graph import Graph
from torchmdx.step.results import GraphRefused

log = logging.getLogger(__name__)


class Replays:
    """The graphs of `steps_per_replay` steps and of one step, each captured at its first use.

    Args:
        blocks: With multiple time steps, of which those up to an evaluation of the full potential count as one here.
        mode: "graph", "auto" or "eager"; with "auto" a graph that fails, or that disagrees with launches, is replaced
            by launches.

    Attributes:
        captured: Whether graphs are in use.
    """

    def __init__(
        self,
        step: CapturedStep,
        state: DeviceState,
        steps_per_replay: int,
        mode: str,
        exchange: DeviceExchange | None = None,
        blocks: DeviceBlocks | None = None,
    ) -> None:
        self.step, self.state, self.steps_per_replay, self.exchange = step, state, steps_per_replay, exchange
        self.blocks, self.steps = blocks, [step, *([] if blocks is None else [blocks.fast])]
        self.captured, self.required = mode != "eager" and step.device.type == "cuda", mode == "graph"
        self.refusal = "mode 'eager' was requested"
        self.graphs: dict[int, Graph] = {}

    @property
    def why(self) -> str:
        if not self.captured:
            return f"steps are launched one after the other: {self.refusal}"
        inner = 1 if self.blocks is None else self.blocks.count
        fast = "" if inner == 1 else f", with one evaluation of the full potential for {inner} of the fast one"
        return f"{self.steps_per_replay * inner} steps are replayed at once as a CUDA graph{fast}"

    def work(self, count: int) -> None:
        """Launches this many steps, and attempts to exchange; reads nothing on the host, so that it can be captured."""
        moving = None if self.blocks is not None else self.state.moving(count)
        if self.blocks is not None:
            for _ in range(count):
                self.blocks.launch()
        elif moving is None or not self.step._launch_moving(moving):
            for _ in range(count):
                self.state.launch_advance(self.step.buffers)
                self.step._launch("steps")
                self.state.launch_complete(self.step.buffers)
        if self.exchange is not None:
            self.exchange.launch()

    def drop(self) -> None:
        """Drops the graphs, before the buffers that they use are replaced."""
        self.graphs.clear()

    def launch(self, count: int) -> None:
        """Launches or replays this many steps, on the current stream. Raises GraphRefused, OutOfDeviceMemory."""
        with memory_explained(self.step.batch, self.step.device):
            whole, rest = divmod(count, self.steps_per_replay)
            for size, times in ((self.steps_per_replay, whole), (1, rest)):
                graph = self._graph(size) if times and self.captured else None
                for _ in range(times):
                    if graph is None:
                        self._launch_eagerly(size)
                    else:
                        graph.replay()

    def _launch_eagerly(self, count: int) -> None:
        self._settled(False)  # kernels use counters that only complete evaluations reset
        run_compiled(lambda: self.work(count), self.step.device)
        self._settled(True)

    def _settled(self, settled: bool) -> None:
        for step in self.steps:
            step.unsettled = not settled

    def _graph(self, count: int) -> Graph | None:
        """The graph of this many steps, captured at its first use; always None once it was refused."""
        if count not in self.graphs:
            try:
                graph = self._record(count)
            except torch.cuda.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self.refuse(f"capture failed: {error}", error)
                return None
            reason = self._compare(graph, count)
            if reason is not None:
                self.refuse(reason)
                return None
            self.graphs[count] = graph
        return self.graphs[count]

    def _record(self, count: int) -> Graph:
        """Recording runs the work, but a run that has halted does not change."""
        halted = self.state.control[1].clone()
        self._settled(False)
        self.state.control[1] = 1
        graph = Graph(lambda: self.work(count), self.step.device)
        self.state.control[1] = halted
        self._settled(True)
        return graph

    def _compare(self, graph: Graph, count: int) -> str | None:
        """Why a replay is not what the launches are; None if it is, or if the run halts within these steps."""
        blocks = [self.state.block, *([] if self.exchange is None else [self.exchange.block])]
        blocks += [] if self.blocks is None else [self.blocks.verdict]
        before = [block.clone() for block in blocks]

        def put_back() -> None:
            for block, kept in zip(blocks, before, strict=True):
                block.copy_(kept)

        try:
            self._launch_eagerly(count)
            launched = self.state.forces.clone()
            halted = bool(self.state.control[1])
            put_back()
            graph.replay()
            error = relative_error(self.state.forces, launched)
        finally:
            put_back()
        if halted or error <= TOLERANCES[self.step.precision]:
            return None
        return f"forces after {count} steps differ by {error:.1e} (relative) between a replay and launches"

    def refuse(self, reason: str, cause: Exception | None = None) -> None:
        """Launches instead of replays. Raises GraphRefused if a graph is required."""
        if self.required:
            raise GraphRefused(f"the graph was refused: {reason}") from cause
        log.warning("running without a CUDA graph: %s", reason)
        self.graphs.clear()
        self.captured, self.refusal = False, reason
