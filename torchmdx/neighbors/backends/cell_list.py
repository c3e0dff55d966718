"""A cell list in C for the CPU: all systems of a batch in one call, straight into the buffers of the list."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchmdx.neighbors import capacity
from torchmdx.neighbors.edges import Edges
from torchmdx.runtime.c_library import c_library
from torchmdx.system import Batch

POINTER, INTEGER = ctypes.c_void_p, ctypes.c_int64
MOST_INSTRUCTIONS = 2  # of instructions.h


class Request(ctypes.Structure):
    """`struct request` of cell_list.c."""

    _fields_ = [
        *((name, INTEGER) for name in ("systems", "atoms", "capacity", "most", "wide")),
        ("radius", ctypes.c_double),
        *((name, POINTER) for name in ("positions", "cell", "periodic", "first", "row_ptr", "source", "target")),
        *((name, POINTER) for name in ("shifts", "num_edges", "needed", "overflow", "room", "numbers")),
        ("bins", INTEGER),
        ("instructions", INTEGER),
    ]


def available() -> bool:
    """Whether the library is there."""
    return c_library("cell_list") is not None


class CellList:
    """The search of one batch, with its memory."""

    def __init__(self, batch: Batch, radius: float, edges: Edges) -> None:
        self.radius, self.edges = radius, edges
        self._bins = batch.num_atoms + 16
        self._room = torch.empty(8 * batch.num_atoms, dtype=torch.float64)
        self._numbers = torch.empty(8 * batch.num_atoms + self._bins + 1, dtype=torch.int32)
        self.assign(batch)

    def assign(self, batch: Batch, counts: Sequence[int] | None = None) -> None:
        """Takes other periodic directions and numbers of atoms per system; counts: these, where the host knows them."""
        self._periodic = batch.pbc.to(torch.uint8).contiguous()
        self._first = torch.tensor([0, *itertools.accumulate(batch.counts().tolist() if counts is None else counts)])
        self._connect()

    def _connect(self) -> None:
        """Makes the request, which holds the addresses of all buffers."""
        library = c_library("cell_list")
        assert library is not None
        self._search = library.cell_list_search
        self._search.restype = INTEGER
        edges, systems = self.edges, len(self._periodic)
        self.request = request = Request(systems=systems, atoms=edges.num_atoms, capacity=edges.capacity)
        request.radius, request.bins, request.instructions = self.radius, self._bins, MOST_INSTRUCTIONS
        request.room, request.numbers = self._room.data_ptr(), self._numbers.data_ptr()
        request.periodic, request.first = self._periodic.data_ptr(), self._first.data_ptr()
        for name in ("row_ptr", "source", "target", "shifts", "num_edges", "needed", "overflow"):
            setattr(request, name, getattr(edges, name).data_ptr())

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("request", "_search")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._connect()  # addresses are those of the copies

    def fill(self, positions: Tensor, cell: Tensor) -> bool:
        """Fills the list. False where another search must serve, and the list is then undefined.

        That is for positions that are not finite, cells without volume or with edges below a sixteenth of the radius,
        and more edges than memory holds.
        """
        if positions.dtype not in (torch.float32, torch.float64) or cell.dtype != positions.dtype:
            return False
        request = self.request
        request.positions, request.cell = positions.data_ptr(), cell.data_ptr()
        request.most = capacity.memory_for_edges()
        request.wide = positions.dtype == torch.float64
        return self._search(ctypes.byref(request)) == 0
