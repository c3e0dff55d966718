"""Small batches with every kind of cell, and their lists with the other direction of each edge."""

import numpy as np
import torch

from torchmdx import Batch, System
from torchmdx.neighbors.search import EdgeSearch

CUTOFF = 3.0


def systems() -> list[System]:
    rng = np.random.default_rng(0)
    small = np.eye(3) * 2.6 + rng.normal(size=(3, 3)) * 0.2  # atoms see images of themselves
    return [
        System.create(rng.normal(size=(5, 3)) * 1.5, rng.integers(1, 9, 5)),
        System.create(rng.uniform(0, 2.5, (3, 3)), [6, 1, 8], cell=small, pbc=True, charge=1.0),
        System.create(np.zeros((1, 3)), [8]),
        System.create(np.zeros((0, 3)), []),
        System.create(
            rng.normal(size=(4, 3)) + np.array([0, 0, 9]),
            [1, 1, 8, 6],
            cell=np.diag([3.0, 4, 5]),
            pbc=[True, False, True],
        ),
    ]


def listed(batch: Batch, capacity: int | None = None, cutoff: float = CUTOFF, backend: str = "auto") -> tuple:
    search = EdgeSearch(cutoff, backend=backend, reverse=True)
    edges = search.allocate(batch, capacity)
    return edges, search.reverse


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
