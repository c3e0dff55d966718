"""Where a step places a structure: lattice translations of atoms and an origin of each system."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmdx.structures import cell as lattice
from torchmdx.structures.system import Batch

# Coordinates above this multiple of the structure's extent, or of 64 Å, are too coarse in float32.
FAR_FACTOR = 4.0
LEAST_EXTENT = 64.0


@dataclass(frozen=True, eq=False)
class Placement:
    """images [N,3] and origin [S,3] Å, which positions leave, and the distance from which they count as far, Å."""

    images: NDArray[np.int32]
    origin: NDArray[np.float64]
    far: float


@np.errstate(all="ignore")  # numbers that are not finite are noticed in the end
def place(batch: Batch, dtype: torch.dtype) -> Placement | None:
    """The placement of a batch on the CPU whose positions are rounded to `dtype`; None if an atom is not finite."""
    positions, limit = batch.positions.numpy(), torch.finfo(dtype).max
    if batch.pbc.numpy().any():
        images, origin, moved = (t.numpy() for t in leave(batch.positions.double(), batch.cell.double(), batch))
    else:
        index = batch.system_index.numpy()
        sums = [np.bincount(index, positions[:, k], batch.num_systems) for k in range(3)]
        counts = np.maximum(np.bincount(index, minlength=batch.num_systems), 1)
        origin = np.stack(sums, 1) / counts[:, None]
        images, moved = np.zeros(positions.shape, np.int32), positions - origin[index]
    extent = np.abs(moved).max(initial=0.0)
    if not (extent <= limit and np.abs(images).max(initial=0) <= np.iinfo(np.int32).max):
        return None
    return Placement(images, origin, far_from(float(extent)))


def far_from(extent: float) -> float:
    """Atoms of a structure of this extent, Å, are far beyond this distance."""
    return FAR_FACTOR * max(extent, LEAST_EXTENT)


def leave(positions: Tensor, cell: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """(images [N,3], origins [S,3], positions [N,3] that they leave), float64."""
    index, pbc = batch.system_index, batch.pbc
    full = lattice.complete(cell, pbc)
    fractional = torch.einsum("ni,nij->nj", positions, torch.linalg.inv_ex(full).inverse[index])
    images = torch.where(pbc[index], torch.floor(fractional), 0.0)
    counts = batch.counts().clamp(min=1)[:, None]
    mean = fractional.new_zeros(batch.num_systems, 3).index_add(0, index, fractional) / counts
    # Atoms are wrapped along periodic directions; systems are centred along the others.
    origin = torch.einsum("si,sij->sj", torch.where(pbc, 0.0, mean), full)
    moved = positions - torch.einsum("ni,nij->nj", images, cell[index]) - origin[index]
    return images, origin, moved
