"""Values of edges from values of their pairs, targets and sources, and the sums in the other direction.

Values of edges are [E,..] by slot, zero at padded edges; with `own` one row per atom, for its message to itself,
follows: [E+N,..]. Values of pairs are [P,..]; with `own` the last row is that of an atom with itself: [P+1,..].
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from torchmdx.engines.cpu import edge_values as compiled_rows
from torchmdx.engines.cpu import pair_forms as compiled
from torchmdx.engines.pairs.pair_list import PairList

Needed = tuple[bool, bool, bool]  # sums over pairs, targets, sources


class _ToEdges(torch.autograd.Function):
    """A[pair] + T[target] + S[source]."""

    @staticmethod
    def forward(ctx: Any, pairs: PairList, own: bool, a: Tensor | None, t: Tensor | None, s: Tensor | None) -> Tensor:
        ctx.pairs, ctx.own = pairs, own
        kernels = kernels_of_edges(*(x for x in (a, t, s) if x is not None))
        return kernels.to_edges(pairs, a, t, s, own) if kernels else _to_edges(pairs, own, a, t, s)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        needed = ctx.needs_input_grad[2:]
        return None, None, *_from_edges(ctx.pairs, ctx.own, gradients[0], needed)


class _FromEdges(torch.autograd.Function):
    """Sums over the edges of each pair, target and source: those that are needed."""

    @staticmethod
    def forward(ctx: Any, pairs: PairList, own: bool, needed: Needed, g: Tensor) -> tuple[Tensor, ...]:
        ctx.pairs, ctx.own, ctx.needed = pairs, own, needed
        ctx.set_materialize_grads(False)
        return tuple(_sums(pairs, own, needed, g))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        given = iter(gradients)
        values = [next(given) if needed else None for needed in ctx.needed]
        if all(value is None for value in values):
            return None, None, None, None
        return None, None, None, to_edges(ctx.pairs, *values, own=ctx.own)


def to_edges(
    pairs: PairList, a: Tensor | None, t: Tensor | None = None, s: Tensor | None = None, *, own: bool = True
) -> Tensor:
    """[E+N,K], or [E,K] without `own`: a [P+1,K] of the pair + t [N,K] of the target + s [N,K] of the source.

    Zero at padded edges. One or two of the three may be None. Of `own` rows an atom is both target and source.
    """
    whole = (None if x is None else x.contiguous() for x in (a, t, s))
    return _ToEdges.apply(pairs, own, *whole)


def to_targets(pairs: PairList, values: Tensor) -> Tensor:
    """Sums [N,K] of values [E,K] over the edges with each atom as target."""
    (found,) = _FromEdges.apply(pairs, False, (False, True, False), values.contiguous())
    return found


def _from_edges(pairs: PairList, own: bool, g: Tensor, needed: Needed) -> Iterator[Tensor | None]:
    found = iter(_FromEdges.apply(pairs, own, needed, g.contiguous()) if any(needed) else ())
    return (next(found) if each else None for each in needed)


def _to_edges(pairs: PairList, own: bool, a: Tensor | None, t: Tensor | None, s: Tensor | None) -> Tensor:
    edges, terms = pairs.edges, []
    for values, index in ((a, pairs.code // 2), (t, edges.target), (s, edges.source)):
        if values is None:
            continue
        rows = values.index_select(0, index) * edges.filled()[:, None]
        if own:
            rows = torch.cat([rows, values[-1:].expand(edges.num_atoms, -1) if values is a else values])
        terms.append(rows)
    return sum(terms[1:], terms[0])


def _sums(pairs: PairList, own: bool, needed: Needed, g: Tensor) -> Iterator[Tensor]:
    edges = pairs.edges
    if g.is_cuda:
        if needed[0]:
            yield _kernels().to_pairs(pairs, g, own)
        if any(needed[1:]):
            yield from _kernels().to_atoms(pairs, g, own, *needed[1:])
        return
    if compiled.serves(g):
        yield from (x for x in compiled_rows.from_edges(pairs, g, own, needed) if x is not None)
        return
    rows, atoms = g[: edges.capacity] * edges.filled()[:, None], g[edges.capacity :]
    if needed[0]:
        sums = g.new_zeros(pairs.num_slots, g.shape[1]).index_add_(0, pairs.code // 2, rows)
        yield torch.cat([sums, atoms.sum(0, keepdim=True)]) if own else sums
    for each, index in zip(needed[1:], (edges.target, edges.source), strict=True):
        if each:
            start = atoms if own else g.new_zeros(edges.num_atoms, g.shape[1])
            yield start.index_add(0, index, rows)


def kernels_of_edges(*tensors: Tensor) -> Any:
    """The kernels for these tensors, Triton's or those in C; None for torch operations."""
    if tensors[0].is_cuda:
        return _kernels()
    return compiled_rows if compiled.serves(*tensors) else None


def _kernels() -> Any:
    from torchmdx.engines.pairs.kernels import edge_values

    return edge_values
