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
from torchmdx.runtime.c_arrays import CPU, address
from torchmdx.runtime.c_library import c_library
from torchmdx.structures.system import Batch

POINTER, INTEGER = ctypes.c_void_p, ctypes.c_int64
MOST_INSTRUCTIONS = 2  # of instructions.h


class RequestStruct(ctypes.Structure):
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
        self._room = torch.empty(8 * batch.num_atoms, dtype=torch.float64, device=CPU)
        self._numbers = torch.empty(8 * batch.num_atoms + self._bins + 1, dtype=torch.int32, device=CPU)
        self.assign(batch)

    def assign(self, batch: Batch, counts: Sequence[int] | None = None) -> None:
        """Takes other periodic directions and numbers of atoms per system; counts: these, where the host knows them."""
        self._periodic = batch.pbc.to(torch.uint8).contiguous()
        ends = itertools.accumulate(batch.counts().tolist() if counts is None else counts)
        self._first = torch.tensor([0, *ends], dtype=torch.int64, device=CPU)
        self._connect()

    def _connect(self) -> None:
        """Makes the request, which holds the addresses of all buffers."""
        library = c_library("cell_list")
        assert library is not None
        self._search = library.cell_list_search
        self._search.restype = INTEGER
        edges, systems = self.edges, len(self._periodic)
        self.request = request = RequestStruct(systems=systems, atoms=edges.num_atoms, capacity=edges.capacity)
        request.radius, request.bins, request.instructions = self.radius, self._bins, MOST_INSTRUCTIONS
        request.room = address("room", self._room, torch.float64)
        request.numbers = address("numbers", self._numbers, torch.int32)
        request.periodic = address("pbc", self._periodic, torch.uint8, shape=(systems, 3))
        request.first = address("first atoms", self._first, torch.int64, shape=(systems + 1,))
        rows, slots = (edges.num_atoms + 1,), (edges.capacity,)
        shapes = {"row_ptr": rows, "source": slots, "target": slots, "shifts": (*slots, 3), "num_edges": ()}
        for name, shape in shapes.items():
            setattr(request, name, address(name, getattr(edges, name), torch.int32, shape=shape))
        request.needed = address("needed", edges.needed, torch.int64, shape=())
        request.overflow = address("overflow", edges.overflow, torch.bool, shape=())

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
        positions, cell = positions.contiguous(), cell.contiguous()
        request.positions = address("positions", positions, positions.dtype, shape=(request.atoms, 3))
        request.cell = address("cell", cell, positions.dtype, shape=(request.systems, 3, 3))
        request.most = capacity.memory_for_edges()
        request.wide = positions.dtype == torch.float64
        return self._search(ctypes.byref(request)) == 0
