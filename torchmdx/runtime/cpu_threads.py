"""One thread for small evaluations on the CPU, where several take longer and compete with other programs.

A parallel operation of torch wakes its threads and waits for the last of them. For a molecule that takes as long as
the work itself, and several times as long where other programs use the cores. The number is chosen by the size alone,
so that a structure gives the same bits every time: sums in torch depend on the number of threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator

import torch

# Edges that are worth a second thread: with tabulated filters, and in the exact model, which computes more for each.
FEW_EDGES, FEW_EDGES_EXACT = 2000, 300


def num_threads(num_edges: int, *, exact: bool) -> int:
    """Threads for an evaluation on the CPU with this number of edges: one, or as many as torch is set to."""
    few = num_edges < (FEW_EDGES_EXACT if exact else FEW_EDGES)
    return 1 if few and _setters() else torch.get_num_threads()


@contextlib.contextmanager
def limited_to(count: int | None) -> Iterator[None]:
    """Operations of torch in the calling thread use this number of threads (None: unchanged).

    Other threads are not affected; `torch.set_num_threads` would also change threads that start meanwhile.
    """
    before, setters = torch.get_num_threads(), _setters()
    if setters is None or count is None or count == before:
        yield
        return
    openmp, mkl = setters
    try:
        openmp(count)
        mkl(count)
        yield
    finally:
        openmp(before)
        mkl(0)  # 0: the number of the whole process


@functools.cache
def _setters() -> tuple[Callable[[int], object], Callable[[int], object]] | None:
    """Functions of the OpenMP and MKL that torch is linked to, which set the number of the calling thread."""
    torch_itself = ctypes.CDLL(torch._C.__file__)
    try:
        openmp = torch_itself.omp_set_num_threads
    except AttributeError:
        return None
    openmp.restype = None
    mkl = getattr(torch_itself, "MKL_Set_Num_Threads_Local", None)
    return openmp, (lambda count: 0) if mkl is None else mkl
