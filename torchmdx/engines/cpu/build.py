"""The C libraries of the CPU engines."""

from __future__ import annotations

import ctypes
import functools

import torch

from torchmdx.runtime.c_library import c_library

# Suffixes of kernels by the numbers of instructions.h.
INSTRUCTION_SUFFIXES = ("base", "v3", "v4")


@functools.cache
def library() -> ctypes.CDLL | None:
    """Kernels over rows of edges (kernels.c); None, with one line in the log, if they can't be compiled or loaded."""
    loaded = c_library("kernels")
    if loaded is not None:
        loaded.kernels_instructions.restype, loaded.kernels_instructions.argtypes = ctypes.c_int64, [ctypes.c_int64]
    return loaded


@functools.cache
def kernel_suffix() -> str:
    """The end of the names of the kernels for this machine."""
    loaded = library()
    assert loaded is not None
    return INSTRUCTION_SUFFIXES[loaded.kernels_instructions(len(INSTRUCTION_SUFFIXES) - 1)]


# By the type of the numbers; the second is compiled from the sources of the first.
TENSORNET = {torch.float32: "tensornet", torch.float64: "tensornet_double"}


@functools.cache
def tensornet_library(dtype: torch.dtype = torch.float32) -> ctypes.CDLL | None:
    """TensorNet's evaluation (tensornet.c); None, with one line in the log, if it can't be compiled or loaded."""
    loaded = c_library(TENSORNET[dtype])
    if loaded is None:
        return None
    for name in ("tensornet_scratch", "tensornet_instructions", "tensornet_run"):
        getattr(loaded, name).restype = ctypes.c_int64
    loaded.tensornet_instructions.argtypes = [ctypes.c_int64]
    return loaded
