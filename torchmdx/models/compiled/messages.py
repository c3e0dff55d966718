"""Message sums from tabulated filters as differentiable torch functions: in C where it compiled, in torch otherwise.

table [n,terms,3,C] is one set of `TabulatedFilters`: the coefficients of a polynomial in t, in each interval, for the
filters of the scalar, vector and symmetric parts. An edge reads the row interval [E] at t [E].
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchmdx.models.compiled.build import library
from torchmdx.models.tensors import PARTS, spread
from torchmdx.neighbors.edges import Edges

# Below this many edges a second thread costs more than it saves.
EDGES_A_THREAD = 2000


class MessageSum(torch.autograd.Function):
    """M_i = Σ_j f(r_ij) Y_j over the rows of a symmetric list: [N,9,C] from y [N,9,C] and t [E].

    Not differentiable twice, nor by the table: for that there is the exact model.
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
        if not _call("embed", edges, a.shape[1], 1, t, table, a, b, d, out, interval=interval):
            weights = filters(t, interval, table) * _pairs(a, b, edges)[:, None]
            out.index_add_(0, edges.target, spread(weights) * d[:, :, None])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        t, d, a, b, interval, table = ctx.saved_tensors
        edges, grad = ctx.edges, grad.contiguous()
        slope, grad_d = torch.zeros_like(t), torch.zeros_like(d)
        if not _call("embed_slope", edges, a.shape[1], 3, t, table, a, b, d, grad, slope, grad_d, interval=interval):
            here = grad.index_select(0, edges.target) * _pairs(a, b, edges)[:, None]
            grad_d = (spread(filters(t, interval, table)) * here).sum(-1)
            slope = ((spread(filter_slopes(t, interval, table)) * here).sum(-1) * d).sum(-1)
        return slope, grad_d, None, None, None, None, None


def gather(y: Tensor, t: Tensor, interval: Tensor, table: Tensor, edges: Edges) -> Tensor:
    """Σ_j f(r_ij) y_j over each row, [N,9,C]."""
    out = torch.zeros_like(y)
    if not _call("gather", edges, y.shape[2], 1, t, table, y, out, interval=interval):
        out.index_add_(0, edges.target, spread(filters(t, interval, table)) * y.index_select(0, edges.source))
    return out


def gather_back(
    y: Tensor, grad: Tensor, t: Tensor, interval: Tensor, table: Tensor, edges: Edges
) -> tuple[Tensor, Tensor]:
    """Gradients of `gather`: by y, [N,9,C], and by t, [E] = Σ_c ∂f/∂t (grad_i · y_j).

    f is the same for both directions of a pair, so rows of the list also sum over what a source sent to.
    """
    grad_y, slope = torch.zeros_like(y), torch.zeros_like(t)
    if not _call("gather_back", edges, y.shape[2], 3, t, table, y, grad, grad_y, slope, interval=interval):
        grad_y = gather(grad, t, interval, table, edges)
        products = grad.index_select(0, edges.target) * y.index_select(0, edges.source)
        dots = torch.stack([products[:, part].sum(1) for part in PARTS], dim=1)
        slope = (filter_slopes(t, interval, table) * dots).sum((1, 2))
    return grad_y, slope


def filters(t: Tensor, interval: Tensor, table: Tensor) -> Tensor:
    """Filters [E,3,C] at t [E] of the intervals [E]."""
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


def _call(name: str, edges: Edges, channels: int, scratch: int, t: Tensor, *arrays: Tensor, interval: Tensor) -> bool:
    """Runs a C kernel over all rows, in threads; False where there is none for these tensors."""
    compiled = library()
    if compiled is None or t.device.type != "cpu":
        return False
    for array in (t, *arrays):
        assert array.is_contiguous(), name
        assert array.dtype == t.dtype, name
    kernel = compiled[f"{name}_{'float' if t.dtype == torch.float32 else 'double'}"]
    kernel.restype = None
    fixed = [
        ctypes.c_long(channels),
        ctypes.c_long(arrays[0].shape[1]),  # the table: its number of terms
        *map(pointer, (edges.row_ptr, edges.source, interval, t, *arrays)),
    ]

    def run(first: int, last: int) -> None:
        room = torch.empty(scratch * channels, dtype=t.dtype)
        kernel(ctypes.c_long(first), ctypes.c_long(last), *fixed, pointer(room))

    in_threads(run, shares(edges))
    return True


def in_threads(run: Callable[[int, int], None], ranges: list[tuple[int, int]]) -> None:
    """run(first, last) of every range, side by side: C code runs without Python's lock."""
    if len(ranges) == 1:
        run(*ranges[0])
    else:
        with ThreadPoolExecutor(len(ranges)) as pool:
            list(pool.map(lambda share: run(*share), ranges))


def shares(edges: Edges) -> list[tuple[int, int]]:
    """Ranges of rows with about equally many edges, one for each thread."""
    num_edges = int(edges.row_ptr[-1]) if edges.num_atoms else 0
    threads = max(1, min(torch.get_num_threads(), num_edges // EDGES_A_THREAD))
    wanted = torch.arange(1, threads) * (num_edges / threads)
    bounds = [0, *torch.searchsorted(edges.row_ptr, wanted.to(torch.int32)).tolist(), edges.num_atoms]
    return list(pairwise(bounds))


def pointer(array: Tensor) -> ctypes.c_void_p:
    """Where a tensor's numbers are."""
    return ctypes.c_void_p(array.data_ptr())
