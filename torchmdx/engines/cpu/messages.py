"""Message sums with tabulated filters as differentiable torch functions, in C if it compiled, else in torch.

table [S,n,terms,3,SLICE] is one set of `TabulatedFilters`, `sliced`: the coefficients of a polynomial in t, in each
interval, for the filters of the scalar, vector and symmetric parts. An edge reads the row interval [E] at t [E].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchmdx.engines.cpu.build import SLICE, library
from torchmdx.engines.cpu.threads import addresses, lists_of, run_rows, shares
from torchmdx.models.tensors import PARTS, to_components
from torchmdx.neighbors.edges import Edges


class MessageSum(torch.autograd.Function):
    """M_i = Σ_j f(r_ij) Y_j over the rows of a symmetric list: [N,9,C] from y [N,9,C] and t [E].

    Not differentiable twice, nor by the table; use the exact model for that.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, t: Tensor, interval: Tensor, table: Tensor, edges: Edges) -> Tensor:
        ctx.save_for_backward(y, t, interval, table)
        ctx.edges = edges
        return gather(y, t, interval, table, edges)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, t, interval, table = ctx.saved_tensors
        grad = grad.contiguous()
        return *gather_back(y, grad, t, interval, table, ctx.edges), None, None, None


class EmbeddingSum(torch.autograd.Function):
    """X_i = Σ_j f(r_ij) (a_i + b_j) d_ij: [N,9,C] from t [E] and components d [E,9]; a, b [N,C] carry no gradient."""

    @staticmethod
    def forward(
        ctx: Any, t: Tensor, d: Tensor, a: Tensor, b: Tensor, interval: Tensor, table: Tensor, edges: Edges
    ) -> Tensor:
        ctx.save_for_backward(t, d, a, b, interval, table)
        ctx.edges = edges
        out = a.new_zeros(len(a), 9, a.shape[1])
        if not _call("embed", edges, a.shape[1], t, table, a, b, d, out, interval=interval):
            weights = filters(t, interval, whole(table, a)) * _pairs(a, b, edges)[:, None]
            out.index_add_(0, edges.target, to_components(weights) * d[:, :, None])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        t, d, a, b, interval, table = ctx.saved_tensors
        edges, grad = ctx.edges, grad.contiguous()
        slope, grad_d = torch.zeros_like(t), torch.zeros_like(d)
        if not _call("embed_slope", edges, a.shape[1], t, table, a, b, d, grad, slope, grad_d, interval=interval):
            table = whole(table, a)
            here = grad.index_select(0, edges.target) * _pairs(a, b, edges)[:, None]
            grad_d = (to_components(filters(t, interval, table)) * here).sum(-1)
            slope = ((to_components(filter_slopes(t, interval, table)) * here).sum(-1) * d).sum(-1)
        return slope, grad_d, None, None, None, None, None


def gather(y: Tensor, t: Tensor, interval: Tensor, table: Tensor, edges: Edges) -> Tensor:
    """Σ_j f(r_ij) y_j over each row, [N,9,C]."""
    out = torch.zeros_like(y)
    if not _call("gather", edges, y.shape[2], t, table, y, out, interval=interval):
        out.index_add_(
            0, edges.target, to_components(filters(t, interval, whole(table, y))) * y.index_select(0, edges.source)
        )
    return out


def gather_back(
    y: Tensor, grad: Tensor, t: Tensor, interval: Tensor, table: Tensor, edges: Edges
) -> tuple[Tensor, Tensor]:
    """Gradients of `gather`: by y, [N,9,C], and by t, [E] = Σ_c ∂f/∂t (grad_i · y_j).

    f is the same for both directions of a pair, so sums over rows are also sums over the edges from a source.
    """
    grad_y, slope = torch.zeros_like(y), torch.zeros_like(t)
    if not _call("gather_back", edges, y.shape[2], t, table, y, grad, grad_y, slope, interval=interval):
        grad_y = gather(grad, t, interval, table, edges)
        products = grad.index_select(0, edges.target) * y.index_select(0, edges.source)
        dots = torch.stack([products[:, part].sum(1) for part in PARTS], dim=1)
        slope = (filter_slopes(t, interval, whole(table, y)) * dots).sum((1, 2))
    return grad_y, slope


def sliced(table: Tensor) -> Tensor:
    """A table [n,terms,3,C] in the layout of the kernels in C, [S,n,terms,3,SLICE]: S slices of channels."""
    padded = torch.nn.functional.pad(table, (0, -table.shape[-1] % SLICE))
    return padded.unflatten(-1, (-1, SLICE)).movedim(-2, 0).contiguous()


def whole(table: Tensor, like: Tensor) -> Tensor:
    """The inverse of `sliced`, with the number of channels of another tensor's last dimension."""
    return table.movedim(0, -2).flatten(-2)[..., : like.shape[-1]]


def filters(t: Tensor, interval: Tensor, table: Tensor) -> Tensor:
    """Filters [E,3,C] at t [E] of the intervals [E], from a table [n,terms,3,C]."""
    *rest, value = table.index_select(0, interval).unbind(1)
    for coefficient in reversed(rest):
        value = coefficient + t[:, None, None] * value
    return value


def filter_slopes(t: Tensor, interval: Tensor, table: Tensor) -> Tensor:
    """Derivatives of `filters` by t, [E,3,C]."""
    _, *rest = table.index_select(0, interval).unbind(1)
    slope = torch.zeros_like(rest[0])
    for power, coefficient in reversed(list(enumerate(rest, start=1))):
        slope = power * coefficient + t[:, None, None] * slope
    return slope


def _pairs(a: Tensor, b: Tensor, edges: Edges) -> Tensor:
    return a.index_select(0, edges.target) + b.index_select(0, edges.source)


def _call(name: str, edges: Edges, channels: int, t: Tensor, table: Tensor, *arrays: Tensor, interval: Tensor) -> bool:
    """Runs a C kernel over all rows, in threads; False if there is none for these tensors."""
    if t.device.type != "cpu" or library() is None:
        return False
    terms, intervals = table.shape[2], table.shape[1]
    given = *lists_of(edges, edges.source, interval), *addresses(name, t.dtype, t, table, *arrays)
    run_rows(name, t.dtype, shares(edges), channels, terms, intervals, *given)
    return True
