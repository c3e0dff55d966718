"""vesin: a compiled cell list for the CPU, one system at a time."""

from __future__ import annotations

import numpy as np
import torch

from torchmdx import cell as lattice
from torchmdx.neighbors.backends.frame import Pairs
from torchmdx.system import Batch


def pairs(batch: Batch, cutoff: float) -> Pairs:
    """target, source, shifts of a batch on the CPU, sorted by target. Atoms that are not finite have no neighbours."""
    from vesin import NeighborList

    search = NeighborList(cutoff=cutoff, full_list=True, sorted=True)
    counts = batch.counts().tolist()
    positions, cells = batch.positions.double().numpy(), batch.cell.double().numpy()
    full = lattice.complete(batch.cell.double(), batch.pbc).numpy()
    targets, sources, shifts = [], [], []
    first = 0
    for k, count in enumerate(counts):
        points = positions[first : first + count]
        periodic = batch.pbc[k].numpy()
        finite = np.isfinite(points).all(axis=1)
        atoms = np.flatnonzero(finite) + first
        box = np.where(periodic[:, None], cells[k], full[k])
        i, j, s = search.compute(points[finite], box, [bool(p) for p in periodic], "ijS", copy=True)
        targets.append(atoms[i.astype(np.int64)])
        sources.append(atoms[j.astype(np.int64)])
        shifts.append(np.where(periodic, s.reshape(-1, 3), 0))
        first += count
    together = [np.concatenate(part) for part in (targets, sources, shifts)]
    return tuple(torch.from_numpy(part.astype(np.int64)) for part in together)  # type: ignore[return-value]
