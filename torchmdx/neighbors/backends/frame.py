"""The frame around searches that return arrays: skin, copying into fixed buffers, overflow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from torchmdx.neighbors.backends.cell_list import CellList
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.neighbors.capacity import UNCOUNTABLE, CapacityError
from torchmdx.neighbors.edges import Edges
from torchmdx.neighbors.images import require_countable, too_many
from torchmdx.structures import cell as lattice
from torchmdx.structures.system import Batch

# target [E], source [E] and shifts [E,3], sorted by target.
Pairs = tuple[Tensor, Tensor, Tensor]


class Search(Protocol):
    """Fills the edges it was made with. updates [] int64 counts the searches.

    invalid [] bool: an atom had no usable coordinates, or a cell no volume.
    """

    updates: Tensor
    invalid: Tensor

    def assign(self, batch: Batch, counts: Sequence[int] | None = None) -> bool:
        """Takes other atoms and periodic directions, of the same numbers; False if that needs a new search.

        Args:
            counts: Atoms of each system, where the host knows them.
        """

    def update(self, positions: Tensor, cell: Tensor) -> None:
        """Brings the list up to date with positions [N,3] and cell [S,3,3]."""


class CpuSearch:
    """Runs a function that finds pairs, when the skin asks for it, and copies them into the buffers.

    Args:
        direct: A search in C that fills the buffers itself; `pairs` serves what it refuses.
    """

    def __init__(
        self,
        batch: Batch,
        cutoff: float,
        skin: float,
        edges: Edges,
        pairs: Callable[[Batch, float], Pairs],
        direct: CellList | None = None,
    ) -> None:
        self.batch, self.cutoff, self.skin, self.edges, self.pairs = batch, cutoff, skin, edges, pairs
        self.direct = direct
        self.updates = torch.zeros((), dtype=torch.int64, device=batch.positions.device)
        self.invalid = torch.zeros((), dtype=torch.bool, device=batch.positions.device)
        self.reference: tuple[Tensor, Tensor] | None = None

    def assign(self, batch: Batch, counts: Sequence[int] | None = None) -> bool:
        self.batch, self.reference = batch, None
        if self.direct is not None:
            self.direct.assign(batch, counts)
        return True

    def update(self, positions: Tensor, cell: Tensor) -> None:
        if self.reference is not None and self._still_good(positions, cell):
            return
        edges = self.edges
        self.updates += 1
        self.reference = None
        if self.direct is not None and self.direct.fill(positions, cell):
            self.invalid.zero_()
        else:
            self._find_pairs(positions, cell)
        if self.skin > 0 and not bool(edges.overflow | self.invalid):
            self.reference = (positions.clone(), cell.clone())

    def _find_pairs(self, positions: Tensor, cell: Tensor) -> None:
        batch, edges = replace(self.batch, positions=positions, cell=cell), self.edges
        self.invalid.copy_(~torch.isfinite(positions).all())
        try:
            require_countable(cell, batch.pbc, self.cutoff + self.skin)
        except CapacityError:  # as in the GPU searches: sets the flag, and grow() raises the error
            edges.needed.fill_(UNCOUNTABLE)
            edges.overflow.fill_(True)
            self.invalid.fill_(True)
            return
        if (expected := too_many(batch, self.cutoff + self.skin)) is not None:
            edges.needed.fill_(expected)
            edges.overflow.fill_(True)
            return
        fill(edges, *self.pairs(batch, self.cutoff + self.skin))

    def _still_good(self, positions: Tensor, cell: Tensor) -> bool:
        """The rule of torchmdx.neighbors.kernels.still_good, in torch."""
        assert self.reference is not None
        then, old = self.reference
        batch, index = self.batch, self.batch.system_index
        dual = torch.linalg.inv(lattice.complete(old, batch.pbc)).transpose(1, 2)
        change = torch.where(batch.pbc[..., None], cell - old, 0.0)
        strain = torch.einsum("ski,skj->sij", dual, change)
        delta = positions - then - torch.einsum("ni,nij->nj", then, strain[index])
        size = torch.linalg.matrix_norm(strain)
        room = (1 - size) * (self.cutoff + self.skin) - self.cutoff
        limit = room.index_select(0, index)
        return bool(((limit > 0) & (2 * torch.linalg.vector_norm(delta, dim=-1) <= limit)).all())


def fill(edges: Edges, target: Tensor, source: Tensor, shifts: Tensor) -> None:
    """Copies pairs that are sorted by target into the buffers of `edges`, pads, and sets the counts."""
    needed, capacity = len(target), edges.capacity
    kept = min(needed, capacity)
    for buffer, values in ((edges.target, target), (edges.source, source), (edges.shifts, shifts)):
        buffer[:kept].copy_(values[:kept])
        buffer[kept:].fill_(0 if buffer is edges.shifts else edges.num_atoms - 1)
    ends = torch.searchsorted(
        edges.target[:kept], torch.arange(edges.num_atoms, dtype=torch.int32, device=target.device), right=True
    )
    edges.row_ptr[0] = 0
    edges.row_ptr[1:].copy_(ends)
    edges.num_edges.fill_(kept)
    edges.needed.fill_(needed)
    edges.overflow.fill_(needed > capacity)


def torch_brute_force(batch: Batch, cutoff: float) -> Pairs:
    """The reference search. Atoms that are not finite have no neighbours."""
    edges = brute_force(batch, cutoff)
    return edges.target, edges.source, edges.shifts
