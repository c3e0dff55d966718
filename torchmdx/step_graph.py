"""CUDA graphs: recording work that has fixed shapes, counting its nodes, and explaining a lack of memory."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import time
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import torch

from torchmdx.device_guard import capture_lock
from torchmdx.kernel_compile import run_compiled
from torchmdx.step_result import OutOfDeviceMemory
from torchmdx.system import Batch

WARM_UP = 3
Given = ParamSpec("Given")
Result = TypeVar("Result")


def one_at_a_time(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """A function that captures: it waits for the captures of other threads."""

    @functools.wraps(function)
    def run(*args: Given.args, **options: Given.kwargs) -> Result:
        with capture_lock:
            return function(*args, **options)

    return run


class Graph:
    """A recorded sequence of kernels and copies. `seconds` is what recording took."""

    @one_at_a_time
    def __init__(self, work: Callable[[], object], device: torch.device) -> None:
        start = time.perf_counter()
        before = torch.cuda.memory_reserved(device)
        self.device = device
        self.graph = torch.cuda.CUDAGraph(keep_graph=True)
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        # The first runs compile kernels and settle lazy set-up, which must not happen while recording.
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                run_compiled(work, device)
        stream.synchronize()
        with torch.cuda.graph(self.graph, stream=stream):
            work()
        self.graph.instantiate()
        torch.cuda.current_stream(device).wait_stream(stream)
        torch.cuda.current_stream(device).synchronize()
        self.seconds = time.perf_counter() - start
        self.num_bytes = max(0, torch.cuda.memory_reserved(device) - before)
        self.num_nodes = count_nodes(self.graph)

    def replay(self) -> None:
        """Launches the graph on the current stream."""
        self.graph.replay()


def count_nodes(graph: torch.cuda.CUDAGraph) -> int:
    """Kernels, copies and memsets in a graph, asked of the driver."""
    driver = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_size_t(0)
    status = driver.cuGraphGetNodes(ctypes.c_void_p(graph.raw_cuda_graph()), None, ctypes.byref(count))
    return count.value if status == 0 else 0


def seconds_per_run(run: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    """Median wall-clock seconds of `run`, each waited for."""
    times = []
    for _ in range(repeats):
        torch.cuda.current_stream(device).synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.current_stream(device).synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def memory_allocated(device: torch.device) -> int:
    """Bytes that torch's tensors take on a GPU at present; 0 on the CPU."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


@contextlib.contextmanager
def memory_explained(batch: Batch, device: torch.device) -> Iterator[None]:
    """Turns torch's out-of-memory error into OutOfDeviceMemory, with what was there and what to change."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info(device)
        used = torch.cuda.memory_allocated(device)
        raise OutOfDeviceMemory(
            f"a step of {batch.num_atoms} atoms needs more than the GPU has: {used / 2**30:.1f} GiB were taken and "
            f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free when this was refused: {str(error).splitlines()[0]} "
            "Use float32 instead of float64, a smaller skin, fewer atoms or smaller batches, or free other tensors"
        ) from error
