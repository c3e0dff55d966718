"""Kernels in C for `torchmdx.engines.pairs.edge_values` and for messages with filters of edges."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchmdx.engines.cpu.pair_forms import over_rows
from torchmdx.engines.cpu.threads import addresses, lists_of, run_rows, shares
from torchmdx.models.tensors import PARTS, to_components

if TYPE_CHECKING:
    from torchmdx.engines.pairs.pair_list import PairList


def messages_rows(pairs: PairList, f: Tensor, x: Tensor, back: bool) -> Tensor:
    """Messages [N,9,C] with filters f [E+N,3,C] of edges; back: of the reverse edges."""
    edges = pairs.edges
    out = to_components(f[edges.capacity :]) * x
    row = pairs.reverse if back else torch.arange(edges.capacity, dtype=torch.int32, device=x.device)
    over_rows("message_rows", pairs, f, x, out, code=row)
    return out


def messages_edges(pairs: PairList, x: Tensor, g: Tensor) -> Tensor:
    """The derivative of messages by filters of edges, [E+N,3,C]."""
    edges = pairs.edges
    out = x.new_zeros(edges.capacity + edges.num_atoms, 3, x.shape[2])
    over_rows("message_edges", pairs, x, g, out)
    both = x * g
    torch.stack([both[:, part].sum(1) for part in PARTS], 1, out=out[edges.capacity :])
    return out


def to_edges(pairs: PairList, a: Tensor | None, t: Tensor | None, s: Tensor | None, own: bool) -> Tensor:
    """[E+N,K], or [E,K] without `own`: sums of the values of pairs, targets and sources."""
    edges, some = pairs.edges, next(x for x in (a, t, s) if x is not None)
    out = some.new_zeros(edges.capacity + (edges.num_atoms if own else 0), some.shape[1])
    if own:
        for x in (None if a is None else a[-1:], t, s):
            if x is not None:
                out[edges.capacity :] += x
    _rows_of_edges("to_edges", pairs, edges.source, (a, t, s, out))
    return out


def from_edges(
    pairs: PairList, g: Tensor, own: bool, needed: tuple[bool, bool, bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Sums of g [E+N,K] over the edges of pairs, targets and sources: those that are needed."""
    edges, width = pairs.edges, g.shape[1]
    atoms = g[edges.capacity :]
    a = g.new_zeros(pairs.num_slots + own, width) if needed[0] else None
    if a is not None and own:
        a[-1] = atoms.sum(0)
    t, s = ((atoms.clone() if own else g.new_zeros(edges.num_atoms, width)) if each else None for each in needed[1:])
    _rows_of_edges("from_edges", pairs, pairs.reverse, (g, a, t, s))
    return a, t, s


def _rows_of_edges(name: str, pairs: PairList, others: Tensor, arrays: tuple[Tensor | None, ...]) -> None:
    """Runs a kernel over the rows of the list; others [E]: sources or reverse edges."""
    edges, first = pairs.edges, next(x for x in arrays if x is not None)
    lists, given = lists_of(edges, others, pairs.code), addresses(name, first.dtype, *arrays)
    run_rows(name, first.dtype, shares(edges), first.shape[1], pairs.num_slots, *lists, *given)
