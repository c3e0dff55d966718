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
from torchmdx.runtime.c_arrays import CPU, address

# With fewer edges per thread, another thread costs more time than it saves.
EDGES_A_THREAD = 2000
TYPES = {torch.float32: "float", torch.float64: "double"}
# Functions of GNU OpenMP, which other OpenMP libraries provide too.
OPENMP = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


def run_rows(name: str, dtype: torch.dtype, bounds: Sequence[int], *given: int) -> None:
    """Runs the kernel for a dtype over the ranges of rows between bounds, in parallel.

    Args:
        given: Its further arguments, numbers and addresses of arrays.
    """
    compiled = library()
    assert compiled is not None
    kernel = getattr(compiled, f"{name}_{TYPES[dtype]}_{kernel_suffix()}")
    values = (ctypes.c_long * len(given))(*given)
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
    ends = torch.tensor([num_edges * k // threads for k in range(1, threads)], dtype=torch.int32, device=CPU)
    return [0, *torch.searchsorted(edges.row_ptr, ends).tolist(), edges.num_atoms]


def addresses(name: str, dtype: torch.dtype, *arrays: Tensor | None) -> list[int]:
    """Addresses of arrays that a kernel reads or writes in this dtype; 0 for None. Raises ValueError as `address`."""
    return [0 if array is None else address(f"the arrays of {name}", array, dtype) for array in arrays]


def lists_of(edges: Edges, *of_edges: Tensor) -> list[int]:
    """Addresses of the rows of a list, and of whole numbers [E] of its edges. Raises ValueError as `address`."""
    rows = address("row_ptr", edges.row_ptr, torch.int32, shape=(edges.num_atoms + 1,))
    shape = (edges.capacity,)
    return [rows, *(address("numbers of edges", array, torch.int32, shape=shape) for array in of_edges)]


@functools.cache
def openmp() -> tuple[ctypes.c_void_p, ...] | None:
    """Functions of the OpenMP library that torch is linked to; None if it lacks them."""
    torch_itself = ctypes.CDLL(torch._C.__file__)
    try:
        return tuple(ctypes.cast(getattr(torch_itself, name), ctypes.c_void_p) for name in OPENMP)
    except AttributeError:
        return None
