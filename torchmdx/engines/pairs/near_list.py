"""The part of a list within the network's cutoff, as a list of its own, where priors have a larger cutoff."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchmdx.engines.pairs.pair_list import PairList
from torchmdx.neighbors.edges import Edges
from torchmdx.structures.system import Batch


@dataclass(eq=False)
class NearList:
    """The list of a network in one that reaches farther. capacity: its slots; None until the caller has chosen them."""

    cutoff: float
    capacity: int | None = None

    def count(self, batch: Batch, edges: Edges, reverse: Tensor) -> int:
        """Edges within the cutoff. Reads the device."""
        return int(self._kept(batch, PairList.of(edges, reverse)).sum())

    def pairs(self, batch: Batch, edges: Edges, reverse: Tensor) -> PairList:
        """The network's pairs. If they do not fit, `edges.overflow` of the whole list is set."""
        assert self.capacity is not None
        far = PairList.of(edges, reverse)
        near = nearer(far, self._kept(batch, far), self.capacity)
        edges.overflow.logical_or_(near.edges.overflow)
        return near

    def _kept(self, batch: Batch, far: PairList) -> Tensor:
        vectors = far.vectors(batch.positions.detach(), batch.cell, batch.system_index)
        return near_edges(far, vectors, self.cutoff)


def near_edges(far: PairList, vectors: Tensor, cutoff: float) -> Tensor:
    """Which edges are shorter than a cutoff, Å, [E] bool, from vectors [P,3] of pairs: both of a pair, or none."""
    near = ((vectors**2).sum(-1) < cutoff**2) & far.filled()
    return near.index_select(0, far.code // 2) & far.edges.filled()


def nearer(far: PairList, kept: Tensor, capacity: int) -> PairList:
    """The pairs of the edges that are kept, [E] bool, in the same order, in a list of `capacity` slots.

    Does not synchronise. If `overflow` is set, the list is incomplete and must not be used.
    """
    edges, device = far.edges, kept.device
    running = kept.cumsum(0, dtype=torch.int32)
    place, count = running - 1, running[-1]
    # Edges that are left out or do not fit go to one additional slot, which is dropped.
    slot = torch.where(kept, place, capacity).clamp(max=capacity).long()
    numbers = torch.arange(edges.capacity, dtype=torch.int32, device=device)
    chosen = torch.zeros(capacity + 1, dtype=torch.int32, device=device).scatter_(0, slot, numbers)[:-1]
    slots = torch.arange(capacity, dtype=torch.int32, device=device)
    filled, last = slots < count, edges.num_atoms - 1
    before = torch.cat([running.new_zeros(1), running])
    reverse = place.index_select(0, far.reverse.index_select(0, chosen)).clamp(0, capacity - 1)
    part = Edges(
        row_ptr=before.index_select(0, edges.row_ptr).clamp(max=capacity),
        source=torch.where(filled, edges.source.index_select(0, chosen), last),
        target=torch.where(filled, edges.target.index_select(0, chosen), last),
        shifts=torch.where(filled[:, None], edges.shifts.index_select(0, chosen), 0),
        num_edges=count.clamp(max=capacity),
        needed=count.long(),
        overflow=count > capacity,
    )
    return PairList.of(part, torch.where(filled, reverse, slots))
