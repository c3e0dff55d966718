"""CUDA graphs: recording work that has fixed shapes, counting its nodes, and explaining a lack of memory."""

from __future__ import annotations

import contextlib
import ctypes
import time
import traceback
from collections.abc import Callable, Iterator

import torch

from torchmdx.runtime.device_guard import capture_lock
from torchmdx.runtime.kernel_compile import run_compiled
from torchmdx.runtime.own_streams import own_stream
from torchmdx.step.results import OutOfDeviceMemory
from torchmdx.system import Batch

WARM_UP = 3
# What another thread does meanwhile, such as waiting for the whole device, can end a recording.
MOST_ATTEMPTS = 3

# Recordings that could not be ended. torch's allocators keep pointers to them.
_unfinished: list[torch.cuda.CUDAGraph] = []


class Graph:
    """A recorded sequence of kernels and copies. `seconds` is what recording took.

    Recording restricts this thread alone: others may allocate, copy and query events meanwhile.
    """

    def __init__(self, work: Callable[[], object], device: torch.device) -> None:
        start = time.perf_counter()
        before = torch.cuda.memory_reserved(device)
        self.device = device
        stream = own_stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        # The first runs compile kernels and settle lazy set-up, which must not happen while recording.
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
    """Records what `work` launches on a stream, tried up to MOST_ATTEMPTS times.

    Unlike `torch.cuda.graph` it never waits for the whole device, which fails, and makes other recordings fail, while
    any stream of the process is being recorded.
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
    # torch frees no cached memory while a graph is recorded: recordings in several threads follow each other.
    with capture_lock, torch.cuda.stream(stream):
        with contextlib.suppress(RuntimeError):  # while somebody else records; then memory stays cached
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
    """Ends a recording that failed. torch leaves the rest of the process's allocations in its pool otherwise."""
    try:
        graph.capture_end()
    except RuntimeError:
        _unfinished.append(graph)
        index = torch.cuda.current_device() if device.index is None else device.index
        for end in (torch._C._cuda_endAllocateToPool, torch._C._cuda_releasePool):
            with contextlib.suppress(RuntimeError):  # as where the recording had not begun
                end(index, pool)
    else:
        graph.reset()


def count_nodes(graph: torch.cuda.CUDAGraph) -> int:
    """Kernels, copies and memsets in a graph, asked of the driver."""
    driver = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_size_t(0)
    status = driver.cuGraphGetNodes(ctypes.c_void_p(graph.raw_cuda_graph()), None, ctypes.byref(count))
    return count.value if status == 0 else 0


def seconds_per_run(run: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    """Median wall-clock seconds of `run`, each waited for."""
    times = []
    stream = torch.cuda.current_stream(device)  # waiting for the whole device would end other threads' recordings
    for _ in range(repeats):
        stream.synchronize()
        start = time.perf_counter()
        run()
        stream.synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def memory_allocated(device: torch.device) -> int:
    """Bytes that torch's tensors take on a GPU at present; 0 on the CPU."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def release_frames(error: BaseException) -> None:
    """Forgets the local variables of the calls that an error ended: whoever keeps it would keep their memory."""
    traceback.clear_frames(error.__traceback__)


@contextlib.contextmanager
def memory_explained(batch: Batch, device: torch.device) -> Iterator[None]:
    """Turns torch's out-of-memory error into OutOfDeviceMemory, with what was there and what to change."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        release_frames(error)
        free, total = torch.cuda.mem_get_info(device)
        used = torch.cuda.memory_allocated(device)
        raise OutOfDeviceMemory(
            f"a step of {batch.num_atoms} atoms needs more than the GPU has: {used / 2**30:.1f} GiB were taken and "
            f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free when this was refused: {str(error).splitlines()[0]} "
            "Use float32 instead of float64, a smaller skin, fewer atoms or smaller batches, or free other tensors"
        ) from error
