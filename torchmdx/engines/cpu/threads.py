"""Runs kernels of the C library over rows, on the threads that torch's own operations use.

A separate pool would compete for cores with torch's OpenMP threads, which keep spinning for a moment after each
operation of torch.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import torch
from torch import Tensor

from torchmdx.engines.cpu.build import kernel_suffix, library
from torchmdx.neighbors.edges import Edges

# With fewer edges per thread, another thread costs more time than it saves.
EDGES_A_THREAD = 2000
TYPES = {torch.float32: "float", torch.float64: "double"}
# Functions of GNU OpenMP, which other OpenMP libraries provide too.
OPENMP = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


def run_rows(name: str, dtype: torch.dtype, bounds: Sequence[int], *given: int | Tensor | None) -> None:
    """Runs the kernel for a dtype over the ranges of rows between bounds, in parallel.

    given: its further arguments, numbers and arrays; None for an array that is not needed.
    """
    compiled = library()
    assert compiled is not None
    kernel = getattr(compiled, f"{name}_{TYPES[dtype]}_{kernel_suffix()}")
    values = (ctypes.c_long * len(given))(*(_number(x) for x in given))
    ranges, functions = len(bounds) - 1, openmp()
    if ranges > 1 and functions is not None:
        parallel = compiled.rows_parallel
        parallel.restype = None
        places = (ctypes.c_long * len(bounds))(*bounds)
        parallel(*functions, ctypes.cast(kernel, ctypes.c_void_p), ctypes.c_long(ranges), places, values)
        return
    kernel.restype, kernel.argtypes = None, [ctypes.c_long, ctypes.c_long, ctypes.c_void_p]
    if ranges == 1:
        kernel(*bounds, values)
        return
    with ThreadPoolExecutor(ranges) as pool:
        list(pool.map(lambda share: kernel(*share, values), pairwise(bounds)))


def shares(edges: Edges) -> list[int]:
    """Bounds of ranges of rows with about equally many edges, one for each thread."""
    num_edges = int(edges.row_ptr[-1]) if edges.num_atoms else 0
    threads = max(1, min(torch.get_num_threads(), num_edges // EDGES_A_THREAD))
    ends = torch.arange(1, threads) * (num_edges / threads)
    return [0, *torch.searchsorted(edges.row_ptr, ends.to(torch.int32)).tolist(), edges.num_atoms]


def checked(*arrays: Tensor) -> tuple[Tensor, ...]:
    """The same arrays, after assertions that kernels can read them."""
    for array in arrays:
        assert array.is_contiguous()
        assert array.dtype == arrays[0].dtype
    return arrays


def _number(given: int | Tensor | None) -> int:
    if given is None:
        return 0
    return given.data_ptr() if isinstance(given, Tensor) else given


@functools.cache
def openmp() -> tuple[ctypes.c_void_p, ...] | None:
    """Functions of the OpenMP library that torch is linked to; None if it lacks them."""
    torch_itself = ctypes.CDLL(torch._C.__file__)
    try:
        return tuple(ctypes.cast(getattr(torch_itself, name), ctypes.c_void_p) for name in OPENMP)
    except AttributeError:
        return None
