"""CUDA graphs: recording work that has fixed shapes, and counting its nodes."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable

import torch

from torchmdx.runtime.device_guard import capture_lock
from torchmdx.runtime.kernel_compile import run_compiled
from torchmdx.runtime.own_streams import own_stream

WARM_UP = 3
# Another thread can end a recording, for example by synchronising the device.
MOST_ATTEMPTS = 3

# Graphs whose recording could not be ended: torch's allocators keep pointers to them.
_unfinished: list[torch.cuda.CUDAGraph] = []


class Graph:
    """A recorded sequence of kernels and copies. seconds: the time that recording took.

    While this thread records, other threads may allocate, copy and query events.
    """

    def __init__(self, work: Callable[[], object], device: torch.device) -> None:
        start = time.perf_counter()
        before = torch.cuda.memory_reserved(device)
        self.device = device
        stream = own_stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        # The first runs compile kernels and finish lazy initialisation, which must not happen while recording.
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                run_compiled(work, device)
        stream.synchronize()
        self.graph = record(work, stream)
        self.graph.instantiate()
        torch.cuda.current_stream(device).wait_stream(stream)
        self.seconds = time.perf_counter() - start
        self.num_bytes = max(0, torch.cuda.memory_reserved(device) - before)
        self.num_nodes = count_nodes(self.graph)

    def replay(self) -> None:
        """Launches the graph on the current stream."""
        self.graph.replay()


def record(work: Callable[[], object], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """Records what `work` launches on a stream; makes up to MOST_ATTEMPTS attempts.

    Unlike `torch.cuda.graph` it never synchronises the device. While any stream of the process is being recorded, that
    would fail and end the other recording.
    """
    for attempt in range(1, MOST_ATTEMPTS + 1):
        try:
            return _record_once(work, stream)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError:
            if attempt == MOST_ATTEMPTS:
                raise
    raise AssertionError("every attempt returns or raises")


def _record_once(work: Callable[[], object], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    pool = torch.cuda.graph_pool_handle()
    # torch frees no cached memory while a graph is recorded, so threads record one after the other.
    with capture_lock, torch.cuda.stream(stream):
        with contextlib.suppress(RuntimeError):  # while another library records: memory then stays cached
            torch.cuda.empty_cache()
        try:
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            work()
            graph.capture_end()
        except BaseException:
            _abandon(graph, pool, stream.device)
            raise
    return graph


def _abandon(graph: torch.cuda.CUDAGraph, pool: tuple[int, int], device: torch.device) -> None:
    """Ends a recording that failed; otherwise torch keeps allocating from its pool for the whole process."""
    try:
        graph.capture_end()
    except RuntimeError:
        _unfinished.append(graph)
        index = torch.cuda.current_device() if device.index is None else device.index
        for end in (torch._C._cuda_endAllocateToPool, torch._C._cuda_releasePool):
            with contextlib.suppress(RuntimeError):  # for example, the recording had not begun
                end(index, pool)
    else:
        graph.reset()


def count_nodes(graph: torch.cuda.CUDAGraph) -> int:
    """Number of kernels, copies and memsets in a graph, as the CUDA driver reports it."""
    driver = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_size_t(0)
    status = driver.cuGraphGetNodes(ctypes.c_void_p(graph.raw_cuda_graph()), None, ctypes.byref(count))
    return count.value if status == 0 else 0
