"""vesin: a compiled cell list for the CPU, one system at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from torchmdx.neighbors.backends.frame import Pairs
from torchmdx.structures import cell as lattice
from torchmdx.structures.system import Batch

# vesin takes time for every cell of its list, atoms or not: a few atoms in a large space and a short cutoff can take
# seconds, most of all where some directions are periodic and others not (8 atoms, 0.2 Å: 3 s). More cells than
# this, and more per atom, are not worth having.
FEWEST_CELLS, CELLS_TO_AN_ATOM = 5000, 20


class VesinPairs:
    """Finds pairs on the CPU. Keeps vesin's memory: allocating it takes as long as half a search."""

    def __init__(self) -> None:
        self.search: Any = None
        self.radius = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {"search": None, "radius": 0.0}  # vesin's memory is neither copied nor pickled

    def __call__(self, batch: Batch, cutoff: float) -> Pairs:
        """target, source, shifts, sorted by target, valid until the next call. Atoms at NaN have no neighbours."""
        counts = batch.counts().tolist()
        positions, cells = batch.positions.double().numpy(), batch.cell.double().numpy()
        full = lattice.complete(batch.cell.double(), batch.pbc).numpy()
        parts, first = [], 0
        for k, count in enumerate(counts):
            points, periodic = positions[first : first + count], batch.pbc[k].numpy()
            finite = np.isfinite(points).all(axis=1)
            box = np.where(periodic[:, None], cells[k], full[k])
            i, j, shifts = self._pairs(points[finite], box, periodic, cutoff, copy=len(counts) > 1)
            i, j = i.view(np.int64), j.view(np.int64)
            if not finite.all():
                atoms = np.flatnonzero(finite)
                i, j = atoms[i], atoms[j]
            parts.append((i + first, j + first, shifts.reshape(-1, 3)) if first else (i, j, shifts.reshape(-1, 3)))
            first += count
        columns = parts[0] if len(parts) == 1 else tuple(np.concatenate(column) for column in zip(*parts, strict=True))
        target, source, shifts = (torch.from_numpy(column) for column in columns)
        return target, source, shifts

    def _pairs(self, points: Any, box: Any, periodic: Any, cutoff: float, copy: bool) -> Any:
        from vesin import NeighborList

        if len(points) == 0:  # vesin would count the cells of the box, which may be more than it can
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 3), np.int32)
        radius = _affordable(points, box, periodic, cutoff)
        if self.search is None or radius != self.radius:
            self.search, self.radius = NeighborList(cutoff=radius, full_list=True, sorted=True), radius
        if radius == cutoff:
            return self.search.compute(points, box, periodic, "ijS", copy=copy)
        i, j, shifts, distance = self.search.compute(points, box, periodic, "ijSd", copy=True)
        near = distance < cutoff
        return i[near], j[near], shifts[near]


def _affordable(points: Any, box: Any, periodic: Any, cutoff: float) -> float:
    """A radius to search within: the cutoff, or, where its cells would be too many, what makes them fewer."""
    widths = np.where(periodic, np.linalg.norm(box, axis=1), 0.0)
    if not periodic.all():
        widths = np.maximum(widths, np.where(periodic, 0.0, np.ptp(points, axis=0).max()))
    cells = np.prod(widths / cutoff + 1)
    most = FEWEST_CELLS + CELLS_TO_AN_ATOM * len(points)
    if cells <= most:
        return cutoff
    # A power of two, so that structures of about one size share vesin's memory.
    return cutoff * 2.0 ** np.ceil(np.log2(cells / most) / 3)
