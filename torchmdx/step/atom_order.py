"""The order of atoms in a step: along a space-filling curve, so that neighbours in space are neighbours in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from torchmdx.structures.domain import Domain
from torchmdx.structures.system import Batch

# A smaller structure fits into the GPU's cache, and its order makes no measurable difference.
FEWEST_ATOMS = 6000


def choose_order(batch: Batch, positions: Tensor, cell: Tensor) -> Tensor | None:
    """Indices of atoms [N] int32 along a curve, system by system; None for few atoms, a CPU or non-finite positions."""
    if batch.num_atoms < FEWEST_ATOMS or batch.positions.device.type != "cuda":
        return None
    if not bool(torch.isfinite(positions).all() & torch.isfinite(cell).all()):
        return None
    order = curve_order(positions, cell, batch.pbc, batch.system_index)
    if isinstance(batch, Domain):  # engines evaluate the first atoms only, so hops remain ascending
        order = order[torch.argsort(batch.hops[order], stable=True)]
    return order.to(torch.int32)


def curve_order(positions: Tensor, cell: Tensor, pbc: Tensor, system_index: Tensor | None = None) -> Tensor:
    """Order [N] of atoms along a Hilbert curve, system by system, so that neighbours in space are close in memory.

    positions [N,3], cell [S,3,3], pbc [S,3]. The order is that of the atoms wrapped into the cell.
    """
    if system_index is None:
        system_index = torch.zeros(len(positions), dtype=torch.int64, device=positions.device)
    return torch.argsort(system_index * 2**30 + along_curve(positions, cell, pbc, system_index), stable=True)


def along_curve(positions: Tensor, cell: Tensor, pbc: Tensor, system_index: Tensor | None = None) -> Tensor:
    """Places [N] of atoms, wrapped into the cell, along the curve; below 2^30."""
    from torchmdx.structures import cell as lattice

    if system_index is None:
        system_index = torch.zeros(len(positions), dtype=torch.int64, device=positions.device)
    wrapped, _ = lattice.wrap(positions, cell, pbc, system_index)
    if not len(wrapped):
        return torch.zeros(0, dtype=torch.int64, device=positions.device)
    low = wrapped.amin(0)
    extent = (wrapped - low).amax().clamp(min=1e-3)
    return _hilbert(((wrapped - low) / extent * 1023).long().clamp(0, 1023))


def _hilbert(grid: Tensor, bits: int = 10) -> Tensor:
    """Index along the Hilbert curve of integer coordinates [N,3] below 2^bits (Skilling's transform)."""
    x = list(grid.unbind(-1))
    level = 1 << (bits - 1)
    while level > 1:
        below = level - 1
        for axis in range(3):
            high = (x[axis] & level) != 0
            swap = torch.where(high, torch.zeros_like(x[0]), (x[0] ^ x[axis]) & below)
            x[0] = torch.where(high, x[0] ^ below, x[0] ^ swap)
            if axis:
                x[axis] = x[axis] ^ swap
        level >>= 1
    x[1] = x[1] ^ x[0]
    x[2] = x[2] ^ x[1]
    turn = torch.zeros_like(x[0])
    level = 1 << (bits - 1)
    while level > 1:
        turn = torch.where((x[2] & level) != 0, turn ^ (level - 1), turn)
        level >>= 1
    x = [axis ^ turn for axis in x]
    index = torch.zeros_like(x[0])
    for bit in range(bits - 1, -1, -1):
        for axis in range(3):
            index = (index << 1) | ((x[axis] >> bit) & 1)
    return index
