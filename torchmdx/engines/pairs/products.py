"""The multilinear forms of TensorNet: messages, surroundings, and what an atom does with its own tensor.

Tensors of atoms are [N,9,C] (see tensors.py), filters [P+1,3,C]: a row for each pair of atoms, and in the last one the
filter that an atom has for itself. k(m) is the part that component m belongs to. On a GPU the derivatives are kernels
that sum in a fixed order; those of messages, surroundings and products are kernels in C on a CPU that has a compiler.
Elsewhere they are written out in torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchmdx.models.compiled import forms as compiled
from torchmdx.models.pairs import PairList
from torchmdx.models.tensors import PARTS, product, spread, symmetric_product

Arguments = tuple[Tensor | None, ...]
# From so many atoms on, sums over atoms are products of matrices one by one: unlike batches of them, these are cut
# along the sum into shares that fill a GPU.
MANY_ATOMS = 1024


@dataclass(frozen=True)
class Messages:
    """T(F, X, G) = Σ_edges Σ_m,c F[pair,k(m),c] X[source,m,c] G[target,m,c] + Σ_i,m,c F[P,k(m),c] X[i,m,c] G[i,m,c]."""

    pairs: PairList

    def partial(self, slot: int, arguments: Arguments) -> Tensor:
        """In F [P+1,3,C], X or G [N,9,C]. The list is symmetric, and so T in X and G."""
        f, x, g = arguments
        if slot == 0:
            assert x is not None
            assert g is not None
            kernels = _fused(x, g)
            return kernels.messages_pairs(self.pairs, x, g) if kernels else self._in_filters(x, g)
        other = g if slot == 1 else x
        assert f is not None
        assert other is not None
        kernels = _fused(f, other)
        return kernels.messages_rows(self.pairs, f, other) if kernels else self._in_atoms(f, other)

    def _in_atoms(self, f: Tensor, x: Tensor) -> Tensor:
        edges = self.pairs.edges
        weights = spread(_of_edges(f, self.pairs))
        return (spread(f[-1]) * x).index_add(0, edges.target, weights * x.index_select(0, edges.source))

    def _in_filters(self, x: Tensor, g: Tensor) -> Tensor:
        edges = self.pairs.edges
        both = part_sums(x.index_select(0, edges.source) * g.index_select(0, edges.target))
        return torch.cat([_to_pairs(both, self.pairs), part_sums(x * g).sum(0, keepdim=True)])


@dataclass(frozen=True)
class Surroundings:
    """T(D, F, Z, G) = Σ_edges Σ_m,c D[edge,m] F[pair,k(m),c] (Z[target,0,c] + Z[source,1,c]) G[target,m,c],
    and for each atom itself D[P,0] F[P,0,c] (Z[i,0,c] + Z[i,1,c]) G[i,0,c].

    D [P+1,9]: components of each pair's direction; for the other direction the vector changes its sign. Its last row is
    a constant, (1, 0, ...): no gradient is computed for it.
    """

    pairs: PairList

    def partial(self, slot: int, arguments: Arguments) -> Tensor:
        """In D [P+1,9], F [P+1,3,C], Z [N,2,C] or G [N,9,C]."""
        given = [a for a in arguments if a is not None]
        there = given[0]
        if kernels := _fused(*given):
            return kernels.surroundings(self.pairs, slot, *arguments)
        d, f, z, g = (None if a is None else a for a in arguments)
        edges, pairs = self.pairs.edges, self.pairs
        flip = torch.where(pairs.code % 2 == 1, -1.0, 1.0).to(there.dtype)
        signs = torch.ones(len(flip), 9, dtype=there.dtype)
        signs[:, 1:4] = flip[:, None]
        factors: list[Tensor] = []  # each [E,9,C] or broadcastable to it
        if d is not None:
            factors.append((_of_edges(d, pairs) * signs)[:, :, None])
        if f is not None:
            factors.append(spread(_of_edges(f, pairs)))
        if z is not None:
            factors.append((z[:, 0].index_select(0, edges.target) + z[:, 1].index_select(0, edges.source))[:, None])
        if g is not None:
            factors.append(g.index_select(0, edges.target))
        every = factors[0] * factors[1] * factors[2] * edges.filled()[:, None, None]
        return self._collect(slot, every, signs, d, f, z, g)

    def _collect(
        self,
        slot: int,
        every: Tensor,
        signs: Tensor,
        d: Tensor | None,
        f: Tensor | None,
        z: Tensor | None,
        g: Tensor | None,
    ) -> Tensor:
        edges, pairs = self.pairs.edges, self.pairs
        if slot == 0:
            assert f is not None
            found = _to_pairs(every.sum(2) * signs, pairs)
            return torch.cat([found, found.new_zeros(1, 9)])
        assert d is not None
        if slot == 1:
            assert z is not None
            assert g is not None
            own = every.new_zeros(1, 3, every.shape[2])
            own[0, 0] = d[-1, 0] * (z.sum(1) * g[:, 0]).sum(0)
            return torch.cat([_to_pairs(part_sums(every), pairs), own])
        assert f is not None
        if slot == 2:
            assert g is not None
            summed, own = every.sum(1), d[-1, 0] * f[-1, 0] * g[:, 0]
            return torch.stack([own.index_add(0, end, summed) for end in (edges.target, edges.source)], 1)
        assert z is not None
        out = every.new_zeros(edges.num_atoms, 9, every.shape[2])
        out[:, 0] = d[-1, 0] * f[-1, 0] * z.sum(1)
        return out.index_add_(0, edges.target, every)


@dataclass(frozen=True)
class PartSums:
    """T(a, b, h) = Σ_i,m,c a[i,m,c] b[i,m,c] h[i,k(m),c]: tensors scaled part by part, sums of products over parts.

    parts 1: h is [N,1,C], one number for all components. metric: b is replaced by its `undual`, so that a and b are
    multiplied as matrices: T(x, x, .) are squared Frobenius norms.
    """

    parts: int = 3
    metric: bool = False

    def partial(self, slot: int, arguments: Arguments) -> Tensor:
        """In a, b [N,9,C] or h [N,parts,C]."""
        a, b, h = arguments
        if slot == 2:
            assert a is not None
            assert b is not None
            if kernels := _fused(a, b):
                return kernels.part_sums(a, b, self.parts, self.metric)
            both = a * (undual(b) if self.metric else b)
            return part_sums(both) if self.parts == 3 else both.sum(1, keepdim=True)
        other = b if slot == 0 else a
        assert other is not None
        assert h is not None
        if kernels := _fused(other, h):
            return kernels.scale_parts(other, h, self.metric)
        return (spread(h) if self.parts == 3 else h) * (undual(other) if self.metric else other)


class PartLinear:
    """T(x, w, g) = Σ_n,m,o,i g[n,m,o] w[k(m),o,i] x[n,m,i]: linear maps of channels, w [3,C,C], one for each part."""

    def partial(self, slot: int, arguments: Arguments) -> Tensor:
        """In x [N,9,C], w or g [N,9,C]. Parts are read and written where they are, in batches of their components."""
        x, w, g = arguments
        if slot == 1:
            assert x is not None
            assert g is not None
            return self._in_weights(x, g)
        assert w is not None
        given = x if slot == 2 else g
        assert given is not None
        out = torch.empty_like(given)
        for k in range(3):
            matrix = w[k].T if slot == 2 else w[k]
            values = _part(given, k)
            torch.bmm(values, matrix.expand(len(values), -1, -1), out=_part(out, k))
        return out

    def _in_weights(self, x: Tensor, g: Tensor) -> Tensor:
        if len(x) < MANY_ATOMS:
            return torch.stack([torch.bmm(_part(g, k).mT, _part(x, k)).sum(0) for k in range(3)])
        out = x.new_zeros(3, x.shape[2], x.shape[2])
        for k in range(3):
            for component in range(PARTS[k].start, PARTS[k].stop):
                out[k].addmm_(g[:, component].T, x[:, component])
        return out


class RowScale:
    """T(v, e, h) = Σ_p,k e[p] v[p,k] h[p,k]: rows scaled, and their products summed."""

    def partial(self, slot: int, arguments: Arguments) -> Tensor:
        """In v [P,K], e [P,1] or h [P,K]."""
        v, e, h = arguments
        if slot == 1:
            assert v is not None
            assert h is not None
            return _kernels().row_products(v, h) if v.is_cuda else (v * h).sum(1, keepdim=True)
        other = h if slot == 0 else v
        assert other is not None
        assert e is not None
        return _kernels().row_scale(other, e) if e.is_cuda else e * other


@dataclass(frozen=True)
class Products:
    """T(a, b, h) = Σ h · components of AB, or with `symmetric` of AB + BA, channel by channel."""

    symmetric: bool

    def partial(self, slot: int, arguments: Arguments) -> Tensor:
        """In a, b or h [N,9,C]. Transposing a matrix changes the sign of its vector; see `dual`."""
        if kernels := _fused(*(x for x in arguments if x is not None)):
            return kernels.products(slot, self.symmetric, *arguments)
        a, b, h = arguments
        multiply: Callable[[Tensor, Tensor], Tensor] = symmetric_product if self.symmetric else product
        if slot == 2:
            assert a is not None
            assert b is not None
            return multiply(a, b)
        assert h is not None
        if slot == 0:
            assert b is not None
            return undual(multiply(dual(h), transposed(b)))
        assert a is not None
        return undual(multiply(transposed(a), dual(h)))


def dual(h: Tensor) -> Tensor:
    """Components of the matrix H with Σ h·x = <H, X> for every X: the inverse of the metric of components."""
    s, a, (qxx, qxy, qxz, qyy, qyz) = h[:, :1] / 3, h[:, 1:4] / 2, h[:, 4:].split(1, 1)
    return torch.cat([s, a, (2 * qxx - qyy) / 3, qxy / 2, qxz / 2, (2 * qyy - qxx) / 3, qyz / 2], 1)


def undual(x: Tensor) -> Tensor:
    """The inverse of `dual`: <., X> as numbers for each component."""
    s, a, (qxx, qxy, qxz, qyy, qyz) = 3 * x[:, :1], 2 * x[:, 1:4], x[:, 4:].split(1, 1)
    return torch.cat([s, a, 2 * qxx + qyy, 2 * qxy, 2 * qxz, 2 * qyy + qxx, 2 * qyz], 1)


def transposed(x: Tensor) -> Tensor:
    """Components of the transposed matrices."""
    return torch.cat([x[:, :1], -x[:, 1:4], x[:, 4:]], 1)


def _part(x: Tensor, k: int) -> Tensor:
    """Components of one part, [its number of components,N,C], as a view."""
    return x[:, PARTS[k]].transpose(0, 1)


def part_sums(x: Tensor) -> Tensor:
    """Sums [..,3,C] over the components of each part of x [..,9,C]."""
    return torch.stack([x[..., part, :].sum(-2) for part in PARTS], -2)


def _of_edges(values: Tensor, pairs: PairList) -> Tensor:
    """Rows of values [P+1,...] for the edges [E,...]; zero where there is none."""
    rows = values.index_select(0, pairs.code // 2)
    return rows * pairs.edges.filled().view(-1, *[1] * (rows.dim() - 1))


def _to_pairs(values: Tensor, pairs: PairList) -> Tensor:
    """Sums [P,...] of values [E,...] over both edges of a pair."""
    there = values * pairs.edges.filled().view(-1, *[1] * (values.dim() - 1))
    return values.new_zeros(pairs.num_slots, *values.shape[1:]).index_add_(0, pairs.code // 2, there)


def _fused(*tensors: Tensor) -> Any:
    """The kernels for these: Triton's, those in C, or None, for what is written out in torch."""
    if tensors[0].is_cuda:
        return _kernels()
    return compiled if compiled.serves(*tensors) else None


def _kernels() -> Any:
    from torchmdx.models.kernels import pairwise

    return pairwise
