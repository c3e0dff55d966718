"""The order of atoms that are evaluated in slabs (engines/gpu/slabs.py): by distance from a plane, in equal numbers.

Along a direction of the cell with height h, an atom at the fraction u has the coordinate min(u, 1 - u) h if the
direction is periodic: the distance from the nearest image of a face. A slab then is two layers of the cell, one on each
side of the face, and neighbours are in slabs nearby across periodic boundaries too. Otherwise the coordinate is u h.
Within a slab, atoms follow a curve, so that neighbours in space are close in memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchmdx.engines.gpu.slab_layout import SlabLayout
from torchmdx.step.atom_order import along_curve
from torchmdx.structures import cell as lattice

ROWS = 64  # that the atoms of a slab are a multiple of


def slab_order(positions: Tensor, cell: Tensor, pbc: Tensor, layout: SlabLayout, cutoff: float) -> Tensor:
    """Order [N] of the atoms of one system, positions [N,3], cell [1,3,3], pbc [1,3]; sets a layout that is not set.

    cutoff: of the network, Å.
    """
    coordinates = _coordinates(positions, cell, pbc)
    if layout.rows is None:
        found = [_rows(coordinates[:, axis], cutoff + layout.margin, layout.reach) for axis in range(3)]
        layout.axis = min(range(3), key=lambda axis: found[axis])
        layout.rows = found[layout.axis]
    assert layout.axis is not None
    order = torch.argsort(coordinates[:, layout.axis], stable=True)
    slab = torch.arange(len(order), device=order.device) // layout.rows
    return order[torch.argsort(slab * 2**30 + along_curve(positions, cell, pbc)[order], stable=True)]


def _coordinates(positions: Tensor, cell: Tensor, pbc: Tensor) -> Tensor:
    """Distances [N,3], Å, along the normals of the cell's faces: see this module's text."""
    inverse = torch.linalg.inv(lattice.complete(cell, pbc)[0])
    u = positions @ inverse
    u = torch.where(pbc[0], u - torch.floor(u), u)
    return torch.where(pbc[0], torch.minimum(u, 1 - u), u) / inverse.norm(dim=0)


def _rows(coordinates: Tensor, distance: float, reach: int) -> int:
    """The fewest atoms of a slab with which `reach` slabs are nowhere thinner than a distance."""
    if not len(coordinates):
        return ROWS
    ascending = coordinates.sort().values
    ends = torch.searchsorted(ascending, ascending + distance, right=True)
    most = int((ends - torch.arange(len(ends), device=ends.device)).max())
    return min(-(-most // (reach * ROWS)) * ROWS, -(-len(ascending) // ROWS) * ROWS)
