"""torch-cluster's radius graph, for batches without periodic directions."""

from __future__ import annotations

import importlib.util

import torch

from torchmdx.neighbors.backends.frame import Pairs
from torchmdx.structures.system import Batch


def require(batch: Batch) -> None:
    """Raises ImportError without torch-cluster, ValueError for a periodic batch."""
    if importlib.util.find_spec("torch_cluster") is None:
        raise ImportError(
            "backend 'torch_cluster' needs the package torch-cluster: pip install 'torchmdx[cluster]' "
            "(it compiles against the torch that is installed)"
        )
    if batch.pbc.any():
        raise ValueError("backend 'torch_cluster' has no periodic images, got a batch with periodic directions")


def pairs(batch: Batch, cutoff: float) -> Pairs:
    """target, source and zero shifts, sorted by target."""
    from torch_cluster import radius_graph

    source, target = radius_graph(
        batch.positions,
        r=cutoff,
        batch=batch.system_index,
        loop=False,
        max_num_neighbors=max(1, int(batch.counts().max())),
    )
    order = (target * max(1, batch.num_atoms) + source).argsort()
    target, source = target[order], source[order]
    return target, source, torch.zeros(len(target), 3, dtype=torch.int64, device=target.device)
