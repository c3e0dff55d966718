"""Multilinear forms of messages: sums over neighbours in interactions and in the embedding.

Tensors of atoms are [N,9,C] (see tensors.py), filters [P+1,3,C]: one row per pair of atoms, and a last row for the
message of an atom to itself. k(m) is the part that component m belongs to. The derivatives are Triton kernels with
sums in a fixed order on a GPU, kernels in C on a CPU with a compiler, and torch operations elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchmdx.engines.pairs.edge_values import kernels_of_edges
from torchmdx.engines.pairs.pair_list import PairList
from torchmdx.engines.pairs.products import Arguments, kernels_of, part_sums
from torchmdx.models.tensors import to_components


@dataclass(frozen=True)
class Messages:
    """T(F, X, G) = Σ_edges Σ_m,c F[pair,k(m),c] X[source,m,c] G[target,m,c] + Σ_i,m,c F[P,k(m),c] X[i,m,c] G[i,m,c]."""

    pairs: PairList

    def partial(self, slot: int, arguments: Arguments) -> Tensor:
        """With respect to F [P+1,3,C], X or G [N,9,C]. T is symmetric in X and G, because the list is symmetric."""
        f, x, g = arguments
        if slot == 0:
            kernels = kernels_of(x, g)
            return kernels.messages_pairs(self.pairs, x, g) if kernels else self._in_filters(x, g)
        other = g if slot == 1 else x
        kernels = kernels_of(f, other)
        return kernels.messages_rows(self.pairs, f, other) if kernels else self._in_atoms(f, other)

    def _in_atoms(self, f: Tensor, x: Tensor) -> Tensor:
        edges = self.pairs.edges
        weights = to_components(_of_edges(f, self.pairs))
        return (to_components(f[-1]) * x).index_add(0, edges.target, weights * x.index_select(0, edges.source))

    def _in_filters(self, x: Tensor, g: Tensor) -> Tensor:
        edges = self.pairs.edges
        both = part_sums(x.index_select(0, edges.source) * g.index_select(0, edges.target))
        return torch.cat([_to_pairs(both, self.pairs), part_sums(x * g).sum(0, keepdim=True)])


@dataclass(frozen=True)
class EdgeMessages:
    """T(F, X, G) = Σ_edges Σ_m,c F[edge,k(m),c] X[source,m,c] G[target,m,c] + Σ_i,m,c F[E+i,k(m),c] X[i,m,c] G[i,m,c].

    As `Messages`, with different filters for the two directions of a pair, and for every atom itself.
    """

    pairs: PairList

    def partial(self, slot: int, arguments: Arguments) -> Tensor:
        """With respect to F [E+N,3,C], X or G [N,9,C]; for X with the filters of the reverse edges."""
        f, x, g = arguments
        if slot == 0:
            kernels = kernels_of_edges(x, g)
            return kernels.messages_edges(self.pairs, x, g) if kernels else self._in_filters(x, g)
        other = g if slot == 1 else x
        if kernels := kernels_of_edges(f, other):
            return kernels.messages_rows(self.pairs, f, other, back=slot == 1)
        edges = self.pairs.edges
        ends = (edges.target, edges.source) if slot == 2 else (edges.source, edges.target)
        rows = to_components(f[: edges.capacity] * edges.filled()[:, None, None]) * other.index_select(0, ends[1])
        return (to_components(f[edges.capacity :]) * other).index_add(0, ends[0], rows)

    def _in_filters(self, x: Tensor, g: Tensor) -> Tensor:
        edges = self.pairs.edges
        both = part_sums(x.index_select(0, edges.source) * g.index_select(0, edges.target))
        return torch.cat([both * edges.filled()[:, None, None], part_sums(x * g)])


@dataclass(frozen=True)
class SurroundingsForm:
    """T(D, F, Z, G) = Σ_edges Σ_m,c D[edge,m] F[pair,k(m),c] (Z[target,0,c] + Z[source,1,c]) G[target,m,c].

    Each atom adds D[P,0] F[P,0,c] (Z[i,0,c] + Z[i,1,c]) G[i,0,c] of itself.

    D [P+1,9]: components of the direction of each pair; the vector part changes its sign for the reverse edge. The last
    row is the constant (1, 0, ...), which has no gradient.
    """

    pairs: PairList

    def partial(self, slot: int, arguments: Arguments) -> Tensor:
        """With respect to D [P+1,9], F [P+1,3,C], Z [N,2,C] or G [N,9,C]."""
        given = [a for a in arguments if a is not None]
        if kernels := kernels_of(*given):
            return kernels.surroundings(self.pairs, slot, *arguments)
        d, f, z, g = arguments
        edges, pairs = self.pairs.edges, self.pairs
        flip = torch.where(pairs.code % 2 == 1, -1.0, 1.0).to(given[0].dtype)
        signs = torch.ones(len(flip), 9, dtype=given[0].dtype, device=flip.device)
        signs[:, 1:4] = flip[:, None]
        factors: list[Tensor] = []  # each [E,9,C] or broadcastable to it
        if d is not None:
            factors.append((_of_edges(d, pairs) * signs)[:, :, None])
        if f is not None:
            factors.append(to_components(_of_edges(f, pairs)))
        if z is not None:
            factors.append((z[:, 0].index_select(0, edges.target) + z[:, 1].index_select(0, edges.source))[:, None])
        if g is not None:
            factors.append(g.index_select(0, edges.target))
        every = factors[0] * factors[1] * factors[2] * edges.filled()[:, None, None]
        return self._collect(slot, every, signs, arguments)

    def _collect(self, slot: int, every: Tensor, signs: Tensor, arguments: Arguments) -> Tensor:
        d, f, z, g = arguments
        edges, pairs = self.pairs.edges, self.pairs
        if slot == 0:
            found = _to_pairs(every.sum(2) * signs, pairs)
            return torch.cat([found, found.new_zeros(1, 9)])
        if slot == 1:
            own = every.new_zeros(1, 3, every.shape[2])
            own[0, 0] = d[-1, 0] * (z.sum(1) * g[:, 0]).sum(0)
            return torch.cat([_to_pairs(part_sums(every), pairs), own])
        if slot == 2:
            summed, own = every.sum(1), d[-1, 0] * f[-1, 0] * g[:, 0]
            return torch.stack([own.index_add(0, end, summed) for end in (edges.target, edges.source)], 1)
        out = every.new_zeros(edges.num_atoms, 9, every.shape[2])
        out[:, 0] = d[-1, 0] * f[-1, 0] * z.sum(1)
        return out.index_add_(0, edges.target, every)


def _of_edges(values: Tensor, pairs: PairList) -> Tensor:
    """Values [E,...] of edges from values [P+1,...] of pairs; zero at padded edges."""
    rows = values.index_select(0, pairs.code // 2)
    return rows * pairs.edges.filled().view(-1, *[1] * (rows.dim() - 1))


def _to_pairs(values: Tensor, pairs: PairList) -> Tensor:
    """Sums [P,...] of values [E,...] over both edges of a pair."""
    masked = values * pairs.edges.filled().view(-1, *[1] * (values.dim() - 1))
    return values.new_zeros(pairs.num_slots, *values.shape[1:]).index_add_(0, pairs.code // 2, masked)
