"""Messages between neighbours in kernels of CUDA C++, kernels/messages.cu, for an H100 or H200.

The same function as triton/messages.py, a warp a row and four channels a lane. A warp reads 32 edges at once, an edge a
lane, skips those beyond the cutoff, sorts the others by their intervals of the table, and gets the numbers of one edge
after the other from its lane. Most of what an edge reads through L1 are words of the table, so these stay in registers
while edges have the same interval; in the gradient, which has no registers left, two such edges share them. Tables have
to be those of `dense_table`, in five words; with others the kernels of Triton are launched.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
import triton
from torch import Tensor

from torchmdx.engines.gpu.many_atoms import Chain
from torchmdx.engines.gpu.triton.edge_walk import LEADING
from torchmdx.runtime.cuda_kernel import GridKernel
from torchmdx.runtime.cuda_source import cubin, members

SOURCES = Path(__file__).with_name("sm90")
MAIN = "messages.cu"
FILES = (MAIN, "quads.cuh", "one_launch_nine.cuh", "one_launch_machine.cuh")
ARCHITECTURE = "sm_90a"
# Of the kernels: macros of messages.cu.
SIZES = dict(SORTED=1, WIDTH=4, CHUNKED=0, WARPS=12, BLOCKS=1, GRADIENT_WARPS=12, GRADIENT_BLOCKS=1)
KERNELS = ("messages", "messages_gradient")


def constants(**sizes: int) -> dict[str, int]:
    """Macros of messages.cu."""
    return SIZES | dict(LEADING=LEADING.value) | sizes


class RowsStruct(ctypes.Structure):
    """`struct RowParams` of messages.cu."""

    _fields_ = members((SOURCES / MAIN).read_text(), "RowParams")


class GridLauncher(Protocol):
    """What runs a kernel: `GridKernel`, or an emulation of it."""

    def launch(self, blocks: int, given: ctypes.Structure) -> None: ...


def code(**sizes: int) -> bytes:
    """The kernels, compiled by NVRTC or from the cache. Raises CompileError or CacheError."""
    files = {name: (SOURCES / name).read_text() for name in FILES}
    return cubin(MAIN, files, ARCHITECTURE, constants(**sizes))


class RowLauncher:
    """A kernel for a number of rows. made: launches blocks; multiprocessors: of the device."""

    def __init__(self, made: GridLauncher, name: str, sizes: Mapping[str, int], multiprocessors: int) -> None:
        prefix = "" if name == KERNELS[0] else "GRADIENT_"
        self.made, self.chunked = made, sizes["CHUNKED"]
        self.rows, self.most = warps(name, sizes) * sizes["WIDTH"] // 4, multiprocessors * sizes[f"{prefix}BLOCKS"]

    def launch(self, count: int, given: ctypes.Structure) -> None:
        self.made.launch(self.most if self.chunked else triton.cdiv(count, self.rows), given)


def warps(name: str, sizes: Mapping[str, int]) -> int:
    """Of a block."""
    return sizes["WARPS" if name == KERNELS[0] else "GRADIENT_WARPS"]


def launchers_of(device: torch.device, **changed: int) -> Mapping[str, RowLauncher]:
    """The kernels on a device. Raises CompileError, CacheError or DriverError."""
    made, sizes, found = code(**changed), constants(**changed), {}
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    for name in KERNELS:
        grid = GridKernel(made, f"{name}_kernel", device, threads=32 * warps(name, sizes), shared_bytes=0)
        found[name] = RowLauncher(grid, name, sizes, multiprocessors)
    return found


@functools.cache
def launchers(device: torch.device) -> Mapping[str, GridLauncher]:
    """Those of `launchers_of` that are used."""
    return launchers_of(device)


class RowMessages(Chain):
    """`Chain` with these kernels; `kernels` has them by name."""

    kernels: Mapping[str, GridLauncher]

    def _walk_messages(self, i: int, y: Tensor, m: Tensor, p: Tensor, keep: bool) -> None:
        if self.tables[i + 1].dtype != torch.uint32:
            super()._walk_messages(i, y, m, p, keep)
            return
        tensors = dict(y=y, all=self._all_y(i, y), m=m if keep else None, p=p, charge=self.charge, system=self.system)
        updated = len(self.weights.layers) - 1 - i
        self._walk("messages", i, tensors, self.atoms(updated), wide_charge=self.charge.dtype == torch.float64)

    def _walk_messages_gradient(self, i: int, y: Tensor, gm: Tensor, gy: Tensor, first: bool) -> None:
        if self.tables[i + 1].dtype != torch.uint32:
            super()._walk_messages_gradient(i, y, gm, gy, first)
            return
        updated = len(self.weights.layers) - 1 - i
        received = self.atoms(updated)
        of_domain = received if isinstance(received, Tensor) else None
        tensors = dict(y=y, all=self._all_m(i, gm), m=gm, gradient=gy, pull=self.gradient.pull, received=of_domain)
        self._walk("messages_gradient", i, tensors, self.atoms(updated + 1), first=first)

    def _walk(
        self, name: str, i: int, tensors: Mapping[str, Tensor | None], count: int | Tensor, **numbers: Any
    ) -> None:
        """count: of rows that are evaluated, as `atoms` returns it."""
        e, everything = self.edges, tensors["all"]
        assert everything is not None
        given: dict[str, Tensor | None] = {
            **tensors,
            "row_ptr": e.row_ptr,
            "source": self.senders,
            "knot": self.b.knot,
            "place": self.b.place,
            "table": self.tables[i + 1],
            "own": self.weights.layers[i].own,
            "count": count if isinstance(count, Tensor) else None,
        }
        pointers = {key: None if value is None else value.data_ptr() for key, value in given.items()}
        first, window = self._window(everything)
        made = RowsStruct(**pointers, **numbers, num_atoms=self.n, first_atom=first, window=window)
        made.slots = self.b.gradient.pull.stride(0) if self.b.gradient is not None else 0
        self.kernels[name].launch(self.n, made)
