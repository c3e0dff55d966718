"""Edges: the neighbour list every model and kernel reads, and the one place that defines its padding.

Layout, for N atoms and a capacity of E slots::

    row_ptr [N+1]   the edges of target atom i are the slots row_ptr[i] .. row_ptr[i+1]-1
    target  [E]     ascending; target[e] = i for every slot of row i
    source  [E]     the neighbour
    shifts  [E,3]   whole lattice translations: vector = r_source - r_target + shifts @ cell

The list is full: it has each pair in both directions. An atom is never its own neighbour, but its periodic images are
neighbours. Slots beyond num_edges are padding: source = target = N-1, shifts = 0. `vectors` gives them a
constant vector longer than any cutoff, so every filter and its gradient are exactly zero there; kernels that walk rows
never read them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchmdx.structures.system import Batch

# Each component of a padded vector, Å: far beyond any cutoff, and its square far below the largest float32.
PADDED_LENGTH = 1e6
# Indices are int32: half the traffic of int64. More slots than this cannot be addressed.
MOST_EDGES = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Edges:
    """A full, deterministic neighbour list in compressed-row form (see the module's text). All integers are int32.

    num_edges [] is the number of filled slots, needed [] (int64) the number of edges that the search found. overflow []
    is set if needed exceeds the capacity: the list is then incomplete and must not be used.
    """

    row_ptr: Tensor
    source: Tensor
    target: Tensor
    shifts: Tensor
    num_edges: Tensor
    needed: Tensor
    overflow: Tensor

    @property
    def num_atoms(self) -> int:
        return len(self.row_ptr) - 1

    @property
    def capacity(self) -> int:
        return len(self.source)

    def vectors(self, positions: Tensor, cell: Tensor, system_index: Tensor) -> Tensor:
        """Vectors [E,3] from target to source, Å, differentiable in positions [N,3] and cell [S,3,3]."""
        if self.num_atoms == 0:
            return positions.new_zeros(0, 3)
        between = positions.index_select(0, self.source) - positions.index_select(0, self.target)
        edge_cell = cell.index_select(0, system_index.index_select(0, self.target))
        vectors = between + torch.einsum("ei,eij->ej", self.shifts.to(cell.dtype), edge_cell)
        return torch.where(self.filled()[:, None], vectors, PADDED_LENGTH)

    def filled(self) -> Tensor:
        """Which slots hold an edge [E], bool."""
        return torch.arange(self.capacity, device=self.source.device) < self.num_edges

    def trimmed(self) -> Edges:
        """The same list without its padding. Reads num_edges on the host."""
        count = int(self.num_edges)
        return Edges(
            self.row_ptr,
            self.source[:count],
            self.target[:count],
            self.shifts[:count],
            self.num_edges,
            self.needed,
            self.overflow,
        )


def empty_edges(batch: Batch, capacity: int) -> Edges:
    """A list of no edges: every slot is padding."""
    device, last = batch.positions.device, max(batch.num_atoms - 1, 0)

    def full(*shape: int, fill: int = 0, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.full(shape, fill, dtype=dtype, device=device)

    return Edges(
        row_ptr=full(batch.num_atoms + 1),
        source=full(capacity, fill=last),
        target=full(capacity, fill=last),
        shifts=full(capacity, 3),
        num_edges=full(),
        needed=full(dtype=torch.int64),
        overflow=full(dtype=torch.bool),
    )


def from_lists(target: Tensor, source: Tensor, shifts: Tensor, num_atoms: int, capacity: int) -> Edges:
    """Edges from a list sorted by target: counts rows and pads or cuts to `capacity`.

    Raises:
        ValueError: When the capacity cannot be addressed with int32.
    """
    if not 0 <= capacity <= MOST_EDGES:
        raise ValueError(f"capacity must be from 0 to {MOST_EDGES} edges, got {capacity}")
    device, needed = target.device, len(target)
    kept = min(needed, capacity)
    rows = torch.bincount(target, minlength=num_atoms)
    row_ptr = torch.cat([rows.new_zeros(1), rows.cumsum(0)]).clamp(max=capacity).to(torch.int32)
    last = max(num_atoms - 1, 0)

    def padded(values: Tensor, fill: int) -> Tensor:
        out = torch.full((capacity, *values.shape[1:]), fill, dtype=torch.int32, device=device)
        out[:kept] = values[:kept]
        return out

    return Edges(
        row_ptr=row_ptr,
        source=padded(source, last),
        target=padded(target, last),
        shifts=padded(shifts, 0),
        num_edges=torch.tensor(kept, dtype=torch.int32, device=device),
        needed=torch.tensor(needed, dtype=torch.int64, device=device),
        overflow=torch.tensor(needed > capacity, device=device),
    )


def edges_within(cutoff: float, edges: Edges, vectors: Tensor) -> tuple[Edges, Tensor]:
    """The edges shorter than a cutoff, and their vectors. Reads their number on the host."""
    near = ((vectors.detach() ** 2).sum(-1) < cutoff**2).nonzero().squeeze(-1)
    target, source, shifts = (column.index_select(0, near) for column in (edges.target, edges.source, edges.shifts))
    return from_lists(target, source, shifts, edges.num_atoms, len(near)), vectors.index_select(0, near)
