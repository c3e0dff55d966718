"""The update as a torch operator, so that torch.compile and torch.export trace through a model that searches."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torchmdx.neighbors.search import EdgeSearch

_searches: weakref.WeakValueDictionary[int, EdgeSearch] = weakref.WeakValueDictionary()
_issued = iter(range(1, 2**62))


def remember(search: EdgeSearch) -> int:
    """A number by which the operator finds the search as long as it exists."""
    handle = next(_issued)
    _searches[handle] = search
    return handle


@torch.library.custom_op(
    "torchmdx::update_edges",
    mutates_args=("row_ptr", "source", "target", "shifts", "num_edges", "needed", "overflow"),
)
def update_edges(
    positions: Tensor,
    cell: Tensor,
    row_ptr: Tensor,
    source: Tensor,
    target: Tensor,
    shifts: Tensor,
    num_edges: Tensor,
    needed: Tensor,
    overflow: Tensor,
    handle: int,
) -> None:
    """Updates the buffers of the search with this handle. They are arguments so that torch knows that they change."""
    search = _searches.get(handle)
    if search is None:
        raise RuntimeError(f"the EdgeSearch number {handle} that was traced no longer exists")
    search.update_buffers(positions, cell)
    # A compiler may hand in copies of the buffers, and copy those back afterwards.
    given = (row_ptr, source, target, shifts, num_edges, needed, overflow)
    for mine, theirs in zip(vars(search.edges).values(), given, strict=True):
        if mine.data_ptr() != theirs.data_ptr():
            theirs.copy_(mine)


@update_edges.register_fake
def _(
    positions: Tensor,
    cell: Tensor,
    row_ptr: Tensor,
    source: Tensor,
    target: Tensor,
    shifts: Tensor,
    num_edges: Tensor,
    needed: Tensor,
    overflow: Tensor,
    handle: int,
) -> None:
    return None
