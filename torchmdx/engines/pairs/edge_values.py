"""Values of edges from values of their pairs, targets and sources, and the sums in the other direction.

Rows are those of the list's slots, [E,..], zero in its padding; with `own` a row for each atom itself comes after
them, [E+N,..]. Of pairs [P,..] the last row, with `own`, is that of an atom with itself, [P+1,..].
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from torchmdx.engines.cpu import edge_values as compiled_rows
from torchmdx.engines.cpu import pair_forms as compiled
from torchmdx.engines.pairs.pair_list import PairList

Wanted = tuple[bool, bool, bool]


class _ToEdges(torch.autograd.Function):
    """A[pair] + T[target] + S[source]."""

    @staticmethod
    def forward(ctx: Any, pairs: PairList, own: bool, a: Tensor | None, t: Tensor | None, s: Tensor | None) -> Tensor:
        ctx.pairs, ctx.own = pairs, own
        kernels = kernels_of_edges(*(x for x in (a, t, s) if x is not None))
        return kernels.to_edges(pairs, a, t, s, own) if kernels else _to_edges(pairs, own, a, t, s)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        wanted = ctx.needs_input_grad[2:]
        return None, None, *_from_edges(ctx.pairs, ctx.own, gradients[0], wanted)


class _FromEdges(torch.autograd.Function):
    """Sums of rows over the edges of a pair, to a target, from a source: those that are wanted."""

    @staticmethod
    def forward(ctx: Any, pairs: PairList, own: bool, wanted: Wanted, g: Tensor) -> tuple[Tensor, ...]:
        ctx.pairs, ctx.own, ctx.wanted = pairs, own, wanted
        ctx.set_materialize_grads(False)
        return tuple(_sums(pairs, own, wanted, g))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        given = iter(gradients)
        values = [next(given) if wanted else None for wanted in ctx.wanted]
        if all(value is None for value in values):
            return None, None, None, None
        return None, None, None, to_edges(ctx.pairs, *values, own=ctx.own)


def to_edges(
    pairs: PairList, a: Tensor | None, t: Tensor | None = None, s: Tensor | None = None, *, own: bool = True
) -> Tensor:
    """[E+N,K], or [E,K] without `own`: a [P+1,K] of the pair + t [N,K] of the target + s [N,K] of the source.

    Zero where there is no edge. Any of the three may be left out. An atom is its own target and source.
    """
    whole = (None if x is None else x.contiguous() for x in (a, t, s))
    return _ToEdges.apply(pairs, own, *whole)


def to_targets(pairs: PairList, values: Tensor) -> Tensor:
    """Sums [N,K] of the rows [E,K] of the edges to each atom."""
    (found,) = _FromEdges.apply(pairs, False, (False, True, False), values.contiguous())
    return found


def _from_edges(pairs: PairList, own: bool, g: Tensor, wanted: Wanted) -> Iterator[Tensor | None]:
    found = iter(_FromEdges.apply(pairs, own, wanted, g.contiguous()) if any(wanted) else ())
    return (next(found) if each else None for each in wanted)


def _to_edges(pairs: PairList, own: bool, a: Tensor | None, t: Tensor | None, s: Tensor | None) -> Tensor:
    edges, parts = pairs.edges, []
    for values, index in ((a, pairs.code // 2), (t, edges.target), (s, edges.source)):
        if values is None:
            continue
        rows = values.index_select(0, index) * edges.filled()[:, None]
        if own:
            rows = torch.cat([rows, values[-1:].expand(edges.num_atoms, -1) if values is a else values])
        parts.append(rows)
    return sum(parts[1:], parts[0])


def _sums(pairs: PairList, own: bool, wanted: Wanted, g: Tensor) -> Iterator[Tensor]:
    edges = pairs.edges
    if g.is_cuda:
        if wanted[0]:
            yield _kernels().to_pairs(pairs, g, own)
        if any(wanted[1:]):
            yield from _kernels().to_atoms(pairs, g, own, *wanted[1:])
        return
    if compiled.serves(g):
        yield from (x for x in compiled_rows.from_edges(pairs, g, own, wanted) if x is not None)
        return
    rows, atoms = g[: edges.capacity] * edges.filled()[:, None], g[edges.capacity :]
    if wanted[0]:
        sums = g.new_zeros(pairs.num_slots, g.shape[1]).index_add_(0, pairs.code // 2, rows)
        yield torch.cat([sums, atoms.sum(0, keepdim=True)]) if own else sums
    for each, index in zip(wanted[1:], (edges.target, edges.source), strict=True):
        if each:
            start = atoms if own else g.new_zeros(edges.num_atoms, g.shape[1])
            yield start.index_add(0, index, rows)


def kernels_of_edges(*tensors: Tensor) -> Any:
    """Triton's kernels, those in C, or None, for what is written out in torch."""
    if tensors[0].is_cuda:
        return _kernels()
    return compiled_rows if compiled.serves(*tensors) else None


def _kernels() -> Any:
    from torchmdx.engines.pairs.kernels import edge_values

    return edge_values
