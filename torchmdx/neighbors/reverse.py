"""The slot of every edge's other direction."""

from __future__ import annotations

import torch
from torch import Tensor

from torchmdx.neighbors.edges import Edges
from torchmdx.runtime.device_guard import on_device


def find_reverse(edges: Edges, out: Tensor) -> None:
    """out[e] = the slot of the edge with source and target swapped and the opposite shift; padding points to itself.

    Runs on the list's device without synchronising with the host.
    """
    if out.device.type == "cuda":
        from torchmdx.neighbors.kernels.reverse import launch

        with on_device(out.device):
            launch(edges, out)
        return
    count = int(edges.num_edges)
    out.copy_(torch.arange(len(out), dtype=torch.int32, device=out.device))
    columns = [edges.target[:count], edges.source[:count], *edges.shifts[:count].unbind(1)]
    swapped = [columns[1], columns[0], *(-c for c in columns[2:])]
    out[_order(swapped)] = _order(columns).to(torch.int32)


def _order(columns: list[Tensor]) -> Tensor:
    """Order [E] of rows sorted by the first column, then the second, ..."""
    order = torch.arange(len(columns[0]), device=columns[0].device)
    for column in reversed(columns):
        order = order[column[order].argsort(stable=True)]
    return order
