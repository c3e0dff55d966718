"""The part of a neighbour list that is shorter than a cutoff, as a list of its own with the same order.

As engines/pairs/near_list.py, without the pairs: counts the near edges of every row, then copies them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchmdx.neighbors.edges import Edges
from torchmdx.structures.system import Batch

DEPTH, PADDED_AT_ONCE = 64, 1024


@triton.jit
def _near(X, CELL, SYSTEM, SOURCE, SHIFTS, i, e, mask, CUTOFF: tl.constexpr):
    """Which edges of atom i are near. The reverse edge has the negative components and the same square."""
    system = tl.load(SYSTEM + i).to(tl.int64)
    j = tl.load(SOURCE + e, mask=mask, other=0).to(tl.int64)
    square = tl.zeros(e.shape, X.dtype.element_ty)
    n0 = tl.load(SHIFTS + e.to(tl.int64) * 3, mask=mask, other=0).to(X.dtype.element_ty)
    n1 = tl.load(SHIFTS + e.to(tl.int64) * 3 + 1, mask=mask, other=0).to(X.dtype.element_ty)
    n2 = tl.load(SHIFTS + e.to(tl.int64) * 3 + 2, mask=mask, other=0).to(X.dtype.element_ty)
    for k in tl.static_range(3):
        d = tl.load(X + j * 3 + k, mask=mask, other=0.0) - tl.load(X + i.to(tl.int64) * 3 + k)
        d += n0 * tl.load(CELL + system * 9 + k)
        d += n1 * tl.load(CELL + system * 9 + 3 + k)
        d += n2 * tl.load(CELL + system * 9 + 6 + k)
        square += d * d
    return mask & (square < CUTOFF * CUTOFF)


@triton.jit
def count_near(X, CELL, SYSTEM, ROW_PTR, SOURCE, SHIFTS, COUNTS, CUTOFF: tl.constexpr, DEPTH: tl.constexpr):
    """COUNTS [N] of every row."""
    i = tl.program_id(0)
    end = tl.load(ROW_PTR + i + 1)
    found = tl.zeros((DEPTH,), tl.int32)
    for start in range(tl.load(ROW_PTR + i), end, DEPTH):
        e = start + tl.arange(0, DEPTH)
        found += _near(X, CELL, SYSTEM, SOURCE, SHIFTS, i, e, e < end, CUTOFF).to(tl.int32)
    tl.store(COUNTS + i, tl.sum(found, 0))


@triton.jit(do_not_specialize=["capacity"])
def copy_near(
    X, CELL, SYSTEM, ROW_PTR, SOURCE, SHIFTS, ENDS, NEAR_PTR, NEAR_SOURCE, NEAR_TARGET, NEAR_SHIFTS, capacity,
    CUTOFF: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Copies rows, up to the capacity. ENDS [N]: cumulative counts, the row included."""
    i = tl.program_id(0)
    begin = tl.load(ROW_PTR + i)
    end = tl.load(ROW_PTR + i + 1)
    place = tl.load(ENDS + i - 1, mask=i > 0, other=0)
    if i == 0:
        tl.store(NEAR_PTR, 0)
    tl.store(NEAR_PTR + i + 1, tl.minimum(tl.load(ENDS + i), capacity))
    for start in range(begin, end, DEPTH):
        e = start + tl.arange(0, DEPTH)
        near = _near(X, CELL, SYSTEM, SOURCE, SHIFTS, i, e, e < end, CUTOFF)
        slot = place + tl.cumsum(near.to(tl.int32), 0) - 1
        there = near & (slot < capacity)
        tl.store(NEAR_SOURCE + slot, tl.load(SOURCE + e, mask=there, other=0), mask=there)
        tl.store(NEAR_TARGET + slot, i + tl.zeros((DEPTH,), tl.int32), mask=there)
        for k in tl.static_range(3):
            n = tl.load(SHIFTS + e.to(tl.int64) * 3 + k, mask=there, other=0)
            tl.store(NEAR_SHIFTS + slot.to(tl.int64) * 3 + k, n, mask=there)
        place += tl.sum(near.to(tl.int32), 0)


@triton.jit(do_not_specialize=["num_atoms", "capacity"])
def pad_near(ENDS, NEAR_SOURCE, NEAR_TARGET, NEAR_SHIFTS, num_atoms, capacity, BLOCK: tl.constexpr):
    """Pads the slots after the last row as `Edges` defines."""
    slot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    unused = (slot >= tl.load(ENDS + num_atoms - 1)) & (slot < capacity)
    tl.store(NEAR_SOURCE + slot, num_atoms - 1 + tl.zeros((BLOCK,), tl.int32), mask=unused)
    tl.store(NEAR_TARGET + slot, num_atoms - 1 + tl.zeros((BLOCK,), tl.int32), mask=unused)
    for k in tl.static_range(3):
        tl.store(NEAR_SHIFTS + slot.to(tl.int64) * 3 + k, tl.zeros((BLOCK,), tl.int32), mask=unused)


class NearRows:
    """The near part of a list, for atoms of a batch. capacity: its slots; None until the caller has chosen them."""

    def __init__(self, cutoff: float) -> None:
        self.cutoff = cutoff
        self.capacity: int | None = None

    def counts(self, batch: Batch, edges: Edges) -> Tensor:
        """Near edges of each atom [N], int32."""
        counts = torch.empty_like(edges.row_ptr[1:])
        count_near[(batch.num_atoms,)](
            batch.positions, batch.cell, batch.system_index, edges.row_ptr, edges.source, edges.shifts, counts,
            CUTOFF=self.cutoff, DEPTH=DEPTH, num_warps=1,
        )  # fmt: skip
        return counts

    def edges(self, batch: Batch, edges: Edges) -> Edges:
        """The near list. If it does not fit, `edges.overflow` of the whole list is set."""
        assert self.capacity is not None
        room = max(self.capacity, 1)
        if batch.num_atoms == 0:
            return self._empty(edges, room)
        ends = self.counts(batch, edges).cumsum(0, dtype=torch.int32)
        pointers = torch.empty_like(edges.row_ptr)
        source, target = (torch.empty(room, dtype=torch.int32, device=ends.device) for _ in range(2))
        shifts = torch.empty(room, 3, dtype=edges.shifts.dtype, device=ends.device)
        copy_near[(batch.num_atoms,)](
            batch.positions, batch.cell, batch.system_index, edges.row_ptr, edges.source, edges.shifts, ends, pointers,
            source, target, shifts, self.capacity, CUTOFF=self.cutoff, DEPTH=DEPTH, num_warps=1,
        )  # fmt: skip
        pad_near[(triton.cdiv(room, PADDED_AT_ONCE),)](
            ends, source, target, shifts, batch.num_atoms, self.capacity, BLOCK=PADDED_AT_ONCE
        )
        overflow = ends[-1] > self.capacity
        edges.overflow.logical_or_(overflow)
        return Edges(
            row_ptr=pointers,
            source=source[: self.capacity],
            target=target[: self.capacity],
            shifts=shifts[: self.capacity],
            num_edges=pointers[-1],
            needed=ends[-1].long(),
            overflow=overflow,
        )

    def _empty(self, edges: Edges, room: int) -> Edges:
        """The list of no atoms, whose rows kernels cannot read."""
        rows, none = edges.row_ptr.new_zeros(room + 1), edges.row_ptr.new_zeros(())
        return Edges(
            row_ptr=rows[:1],
            source=rows[: self.capacity],
            target=rows[: self.capacity],
            shifts=edges.shifts.new_zeros(room, 3)[: self.capacity],
            num_edges=none,
            needed=none.long(),
            overflow=edges.overflow,
        )
