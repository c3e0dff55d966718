"""vesin: a compiled cell list for the CPU, one system at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from torchmdx import cell as lattice
from torchmdx.neighbors.backends.frame import Pairs
from torchmdx.system import Batch


class VesinPairs:
    """Finds pairs on the CPU. Keeps vesin's memory: to allocate it anew takes as long as half a search."""

    def __init__(self) -> None:
        self.search: Any = None
        self.cutoff = 0.0

    def __call__(self, batch: Batch, cutoff: float) -> Pairs:
        """target, source, shifts, sorted by target, valid until the next call. Atoms at NaN have no neighbours."""
        from vesin import NeighborList

        if self.search is None or cutoff != self.cutoff:
            self.search, self.cutoff = NeighborList(cutoff=cutoff, full_list=True, sorted=True), cutoff
        counts = batch.counts().tolist()
        positions, cells = batch.positions.double().numpy(), batch.cell.double().numpy()
        full = lattice.complete(batch.cell.double(), batch.pbc).numpy()
        parts, first = [], 0
        for k, count in enumerate(counts):
            points, periodic = positions[first : first + count], batch.pbc[k].numpy()
            finite = np.isfinite(points).all(axis=1)
            box = np.where(periodic[:, None], cells[k], full[k])
            i, j, shifts = self.search.compute(points[finite], box, periodic, "ijS", copy=len(counts) > 1)
            i, j = i.view(np.int64), j.view(np.int64)
            if not finite.all():
                atoms = np.flatnonzero(finite)
                i, j = atoms[i], atoms[j]
            parts.append((i + first, j + first, shifts.reshape(-1, 3)) if first else (i, j, shifts.reshape(-1, 3)))
            first += count
        columns = parts[0] if len(parts) == 1 else tuple(np.concatenate(column) for column in zip(*parts, strict=True))
        target, source, shifts = (torch.from_numpy(column) for column in columns)
        return target, source, shifts
