"""Messages between neighbours in kernels of CUDA C++, kernels/messages.cu, for an H100 or H200.

The same function as triton/messages.py, a warp a row and four channels a lane. A warp reads 32 edges at once, an edge a
lane, skips those beyond the cutoff, and gets the numbers of one edge from its lane: an edge takes 148 instructions, and
259 in the gradient, instead of 258 and 430. Tables have to be those of `dense_table`, in five words; with others the
kernels of Triton are launched.
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
# Warps of a block, and blocks that a multiprocessor has registers for; whether words of the table stay in registers
# while edges have the same interval, or how many such edges are taken at once. Blocks of many adjacent rows find more
# neighbours in L1, but with few rows the last blocks leave most multiprocessors without work.
SIZES = {
    "few": dict(
        WARPS=4, BLOCKS=4, KEPT=1, AT_ONCE=1,
        GRADIENT_WARPS=4, GRADIENT_BLOCKS=4, GRADIENT_KEPT=0, GRADIENT_AT_ONCE=2,
    ),
    "many": dict(
        WARPS=16, BLOCKS=1, KEPT=1, AT_ONCE=1,
        GRADIENT_WARPS=16, GRADIENT_BLOCKS=1, GRADIENT_KEPT=0, GRADIENT_AT_ONCE=2,
    ),
}  # fmt: skip
MANY_ROWS = 8192
WARPS = {"messages": "WARPS", "messages_gradient": "GRADIENT_WARPS"}  # by kernel, in SIZES


def constants(size: str) -> dict[str, int]:
    """Macros of messages.cu."""
    return {**SIZES[size], "LEADING": LEADING.value}


class RowsStruct(ctypes.Structure):
    """`struct RowParams` of messages.cu."""

    _fields_ = members((SOURCES / MAIN).read_text(), "RowParams")


class GridLauncher(Protocol):
    """What runs a kernel: `GridKernel`, or an emulation of it."""

    def launch(self, blocks: int, given: ctypes.Structure) -> None: ...


def code(size: str) -> bytes:
    """The kernels for few or many rows, compiled by NVRTC or from the cache. Raises CompileError or CacheError."""
    files = {name: (SOURCES / name).read_text() for name in FILES}
    return cubin(MAIN, files, ARCHITECTURE, constants(size))


@functools.cache
def launchers(device: torch.device) -> Mapping[str, GridLauncher]:
    """The kernels on a device. Raises CompileError, CacheError or DriverError."""
    made = {}
    for size, sizes in SIZES.items():
        binary = code(size)
        for name, warps in WARPS.items():
            shape = dict(threads=32 * sizes[warps], shared_bytes=0)
            made[f"{name}_{size}"] = GridKernel(binary, f"{name}_kernel", device, **shape)
    return made


class RowMessages(Chain):
    """`Chain` with these kernels; `kernels` has them by name and size."""

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
        size = "many" if self.n >= MANY_ROWS else "few"
        self.kernels[f"{name}_{size}"].launch(triton.cdiv(self.n, SIZES[size][WARPS[name]]), made)
