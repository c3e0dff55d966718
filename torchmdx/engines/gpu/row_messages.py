"""Messages between neighbours in kernels of CUDA C++, sm90/messages.cu, for an H100 or H200.

The same function as triton/messages.py, a warp a row and four channels a lane. A warp reads 32 edges at once, an edge a
lane, skips those beyond the cutoff, sorts the others by their intervals of the table, and gets the numbers of one edge
after the other from its lane. Most of what an edge reads through L1 are words of the table, so these stay in registers
while edges have the same interval; in the gradient, which has no registers left, two such edges share them. Tables have
to be those of `dense_table`, in five words; with others the kernels of Triton are launched.
"""

from __future__ import annotations

import ctypes
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
from torchmdx.runtime.once import once

SOURCES = Path(__file__).with_name("sm90")
MAIN = "messages.cu"
FILES = (MAIN, "quads.cuh", "one_launch_nine.cuh", "one_launch_machine.cuh")
ARCHITECTURE = "sm_90a"
# Rows of a block. A multiprocessor has registers for one block; more, smaller blocks would be of rows far from each
# other, which share fewer neighbours in L1.
WARPS = 12
KERNELS = ("messages", "messages_gradient")


def constants() -> dict[str, int]:
    """Macros of messages.cu."""
    return dict(WARPS=WARPS, LEADING=LEADING.value)


class RowsStruct(ctypes.Structure):
    """`struct RowParams` of messages.cu."""

    _fields_ = members((SOURCES / MAIN).read_text(), "RowParams")


class GridLauncher(Protocol):
    """What runs a kernel: `GridKernel`, or an emulation of it."""

    def launch(self, blocks: int, given: ctypes.Structure) -> None: ...


def code() -> bytes:
    """The kernels, compiled by NVRTC or from the cache. Raises CompileError or CacheError."""
    files = {name: (SOURCES / name).read_text() for name in FILES}
    return cubin(MAIN, files, ARCHITECTURE, constants())


@once
def launchers(device: torch.device) -> Mapping[str, GridLauncher]:
    """The kernels on a device. Raises CompileError, CacheError or DriverError."""
    made, shape = code(), dict(threads=32 * WARPS, shared_bytes=0)
    return {name: GridKernel(made, f"{name}_kernel", device, **shape) for name in KERNELS}


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
        if self.tables[i + 1].dtype != torch.uint32 or len(self.gradient.pull) > 1:  # it has one slice of channels
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
        self.kernels[name].launch(triton.cdiv(self.n, WARPS), made)
