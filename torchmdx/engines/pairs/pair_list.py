"""Undirected pairs of a full neighbour list, for values that both edges of a pair share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchmdx.neighbors.edges import PADDED_LENGTH, Edges


@dataclass(frozen=True, eq=False)
class PairList:
    """Pairs of the edges of `edges`, P = (E+1)//2 slots, all int32 and on the device.

    reverse [E]: the slot of each edge's reverse edge. code [E]: 2 · pair + 0 for the first edge of the pair in the
    list, its representative, + 1 for the reverse edge. first [P]: the representative of each pair. num_pairs []: slots
    in use; unused slots follow, with valid indices in `first`.
    """

    edges: Edges
    reverse: Tensor
    code: Tensor
    first: Tensor
    num_pairs: Tensor

    @property
    def num_slots(self) -> int:
        return len(self.first)

    @classmethod
    def of(cls, edges: Edges, reverse: Tensor) -> PairList:
        """From the list and the slots [E] of the reverse edges. Nothing is read on the host."""
        capacity, device = edges.capacity, edges.source.device
        slots = (capacity + 1) // 2
        edge = torch.arange(capacity, dtype=torch.int32, device=device)
        is_first = (edge < reverse) & edges.filled()
        number = is_first.cumsum(0, dtype=torch.int32) - 1
        pair = torch.where(is_first, number, number.index_select(0, reverse))
        # Reverse edges go to an extra slot, which is dropped. So do surplus edges of an overflowed list, in which more
        # than half may come first because their reverse edges are missing.
        place = torch.where(is_first, number, slots).clamp(max=slots).long()
        first = torch.arange(slots + 1, dtype=torch.int32, device=device).scatter_(0, place, edge)[:-1]
        code = 2 * pair.clamp(0, max(slots - 1, 0)) + (~is_first).int()
        return cls(edges, reverse, code, first, edges.num_edges // 2)

    def filled(self) -> Tensor:
        """Which slots hold a pair [P], bool."""
        return torch.arange(self.num_slots, device=self.first.device) < self.num_pairs

    def vectors(self, positions: Tensor, cell: Tensor, system_index: Tensor, strain: Tensor | None = None) -> Tensor:
        """Vectors [P,3] of the first edges of pairs, differentiable in positions [N,3] and strain [S,3,3].

        Args:
            strain: Symmetric, deforms every vector of its system; see `torchmdx.evaluation.derivatives.strained`.
        """
        edges = self.edges
        between = at_ends(positions, self, -1.0, 1.0)
        target = edges.target.index_select(0, self.first)
        pair_cell = cell.index_select(0, system_index.index_select(0, target))
        shifts = edges.shifts.index_select(0, self.first).to(cell.dtype)
        vectors = between + (shifts[:, :, None] * pair_cell).sum(1)
        if strain is not None:
            of_atoms = take_rows(strain.flatten(1), system_index, len(cell))
            vectors = vectors + torch.einsum(
                "pi,pij->pj", vectors, at_ends(of_atoms, self, 1.0, 0.0).unflatten(1, (3, 3))
            )
        return torch.where(self.filled()[:, None], vectors, PADDED_LENGTH)


class _AtEnds(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, pairs, at_target, at_source):  # type: ignore[no-untyped-def]
        ctx.pairs, ctx.factors = pairs, (at_target, at_source)
        edges, first = pairs.edges, pairs.first
        out = at_target * values.index_select(0, edges.target.index_select(0, first))
        if at_source:
            out = out + at_source * values.index_select(0, edges.source.index_select(0, first))
        return torch.where(pairs.filled()[:, None], out, 0.0)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return _FromEnds.apply(gradient.contiguous(), ctx.pairs, *ctx.factors), None, None, None


class _FromEnds(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, pairs, at_target, at_source):  # type: ignore[no-untyped-def]
        ctx.pairs, ctx.factors = pairs, (at_target, at_source)
        edges = pairs.edges
        out = values.new_zeros(edges.num_atoms, values.shape[1])
        if values.device.type == "cuda":
            from torchmdx.engines.pairs.kernels.multilinear import sum_pairs

            return sum_pairs(values, pairs, at_target, at_source, out)
        for factor, end in ((at_target, edges.target), (at_source, edges.source)):
            masked = torch.where(pairs.filled()[:, None], factor * values, 0.0)
            out.index_add_(0, end.index_select(0, pairs.first).long(), masked)
        return out

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return _AtEnds.apply(gradient.contiguous(), ctx.pairs, *ctx.factors), None, None, None


def at_ends(values: Tensor, pairs: PairList, at_target: float, at_source: float) -> Tensor:
    """[P,K]: at_target · values[target] + at_source · values[source] of each pair's first edge; zero where unused."""
    return _AtEnds.apply(values, pairs, at_target, at_source)


def onto_ends(values: Tensor, pairs: PairList, at_target: float, at_source: float) -> Tensor:
    """Sums [N,K] of the values [P,K] of pairs over the ends of each pair's first edge, times these factors."""
    return _FromEnds.apply(values.contiguous(), pairs, at_target, at_source)


class _TakeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, index, num_rows):  # type: ignore[no-untyped-def]
        ctx.index, ctx.num_rows = index, num_rows
        return values.index_select(0, index)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return _SumRows.apply(gradient.contiguous(), ctx.index, ctx.num_rows), None, None


class _SumRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, index, num_rows):  # type: ignore[no-untyped-def]
        ctx.index, ctx.num_rows = index, num_rows
        out = values.new_zeros(num_rows, *values.shape[1:])
        if values.device.type == "cuda":
            from torchmdx.engines.pairs.kernels.multilinear import sum_rows

            ends = torch.arange(num_rows + 1, dtype=index.dtype, device=index.device)
            return sum_rows(values, torch.searchsorted(index, ends, out_int32=True), out)
        return out.index_add_(0, index, values)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return _TakeRows.apply(gradient.contiguous(), ctx.index, ctx.num_rows), None, None


def take_rows(values: Tensor, index: Tensor, num_rows: int) -> Tensor:
    """values [num_rows,...] at an ascending index [M], with a gradient that is summed in a fixed order."""
    return _TakeRows.apply(values, index, num_rows)


def sum_rows(values: Tensor, index: Tensor, num_rows: int) -> Tensor:
    """Sums [num_rows,...] of the values [M,...] with the same number in an ascending index [M], in a fixed order."""
    return _SumRows.apply(values, index, num_rows)
