"""The number of periodic images that a search visits, and the limits on it, which collapsed cells exceed.

A search within radius R reaches over q_k = R / h_k cells along a periodic direction k, where h_k is the distance
between the two faces that the cell has across it. Directions that are not periodic have no images and no limit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchmdx.neighbors.capacity import CapacityError, memory_for_edges
from torchmdx.structures import cell as lattice
from torchmdx.structures.system import Batch

# A search is refused unless every q_k < MOST_REACH and Π_k (2 q_k + 3) < MOST_IMAGES. The GPU's kernels use these too.
MOST_REACH = 500.0
MOST_IMAGES = 2.0**20


def reach(cell: Tensor, pbc: Tensor, radius: float) -> Tensor:
    """q [S,3] float64 of cells [S,3,3]: 0 where not periodic, infinite or NaN for cells that have no volume."""
    inverse, info = torch.linalg.inv_ex(lattice.complete(cell.detach().double(), pbc))
    cells = radius * torch.linalg.vector_norm(inverse, dim=-2)
    bare = (pbc & (cell == 0).all(-1)).any(-1)  # `complete` gives these a vector
    cells = torch.where((bare | (info != 0))[:, None], torch.inf, cells)
    return torch.where(pbc, cells, 0.0)


def countable(cell: Tensor, pbc: Tensor, radius: float) -> Tensor:
    """Whether each system's images [S] are within the limits; bool."""
    cells = reach(cell, pbc, radius)
    return (cells < MOST_REACH).all(-1) & (_images(cells, pbc) < MOST_IMAGES)


def _images(cells: Tensor, pbc: Tensor) -> Tensor:
    return torch.where(pbc, 2 * cells + 3, 1.0).prod(-1)


def require_countable(cell: Tensor, pbc: Tensor, radius: float) -> None:
    """Raises CapacityError unless cells [S,3,3] can be searched within the radius (Å): see this module's text."""
    try:
        lattice.require_lattice(cell.detach().double(), pbc)
    except ValueError as error:
        raise CapacityError(f"the neighbour list can't be counted: {error}") from None
    if pbc.device.type == "cpu" and not pbc.any():
        return
    good = countable(cell, pbc, radius)
    if bool(good.all()):
        return
    system = int((~good).nonzero()[0, 0])
    cells = reach(cell, pbc, radius)[system]
    got = " x ".join(f"{q:.4g}" for q in cells.tolist())
    images = float(_images(cells[None], pbc[system][None]))
    raise CapacityError(
        f"the neighbour list can't be counted: a search radius must span less than {MOST_REACH:.0f} cells along each "
        f"periodic direction, with less than {MOST_IMAGES:.0f} images in all, got {got} cells with about {images:.3g} "
        f"images for a radius of {radius:g} Å and the cell {cell[system].tolist()} (system {system})"
    )


def too_many(batch: Batch, radius: float) -> int | None:
    """About how many edges a batch has within the radius, if a list of them exceeds this machine's memory, else None.

    Found without a search, from the mean density of each system. Its cells must be countable.
    """
    memory = memory_for_edges()
    atoms = batch.counts().double()
    cells = reach(batch.cell, batch.pbc, radius)
    if float((atoms**2 * _images(cells, batch.pbc)).sum()) <= memory:
        return None  # not even if every atom were a neighbour of every image
    full = lattice.complete(batch.cell.detach().double(), batch.pbc)
    index = batch.system_index
    along = torch.einsum("ni,nij->nj", batch.positions.detach().double(), torch.linalg.inv(full)[index])
    along = torch.nan_to_num(along, 0.0, 0.0, 0.0)
    scatter = index[:, None].expand(-1, 3)
    low = torch.full_like(cells, torch.inf).scatter_reduce(0, scatter, along, "amin")
    high = torch.full_like(cells, -torch.inf).scatter_reduce(0, scatter, along, "amax")
    # Across a direction that is not periodic: the extent of the atoms, or the side of a cube as large as the sphere.
    sphere = 4 / 3 * math.pi * radius**3
    sides = torch.where(batch.pbc, 1.0, torch.hypot((high - low).clamp(min=0.0), cells.new_tensor(sphere ** (1 / 3))))
    expected = float((atoms**2 * sphere / (lattice.volume(full) * sides.prod(-1))).sum())
    return int(expected) if expected > memory else None
