"""Fixed divisions of a batch for GPU kernels: blocks of atoms, and the bins of a cell list.

They are chosen once, on the host, from the given structures, and remain valid however these change.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchmdx.neighbors.images import countable
from torchmdx.structures import cell as lattice
from torchmdx.structures.system import Batch

# Bins per cutoff along each direction.
PARTS = (1, 1, 1)
# A cell may shrink by this much before the cutoff reaches one bin further.
SLACK = 0.98
# Along a period; else bins are half as wide.
FEWEST_BINS = 3
# With more bins per atom than this most are empty, so bins are made wider.
MOST_BINS = 8


def blocks(counts: list[int], size: int) -> Tensor:
    """[B,3] int32: system, first and end atom of blocks of at most `size` atoms that do not cross systems."""
    rows, first = [], 0
    for system, count in enumerate(counts):
        rows += [(system, at, min(at + size, first + count)) for at in range(first, first + count, size)]
        first += count
    return torch.tensor(rows, dtype=torch.int32, device="cpu").reshape(-1, 3)


def tiles(counts: list[int], size: int) -> Tensor:
    """[T,5] int32: `blocks`, and the first and end atom of the block's system."""
    starts = torch.tensor([0, *counts], dtype=torch.int64, device="cpu").cumsum(0)
    table = blocks(counts, size)
    system = table[:, 0].long()
    return torch.cat([table, starts[system, None], starts[system + 1, None]], 1).to(torch.int32)


@dataclass(frozen=True)
class Grid:
    """Bins of a cell list.

    grids [S,4] int32: bins along each direction, first bin. scales [S,3]: float64, bins to a cell along a periodic
    direction, bins to an Å along another. num_bins: of all systems. candidates: for an atom, and lines: of bins that
    have them, in one image, in the system where they are most, at its mean density.
    """

    grids: Tensor
    scales: Tensor
    num_bins: int
    candidates: float
    lines: int


def groups(grid: Grid, width: int) -> Tensor:
    """[G,3] int32: system, first bin and number of bins of runs of at most `width` bins along x."""
    parts = []
    for system, (along, *others, first) in enumerate(grid.grids.tolist()):
        lines = torch.arange(others[0] * others[1], device="cpu") * along + first
        for start in range(0, along, width):
            row = torch.tensor([system, start, min(width, along - start)], device="cpu").repeat(len(lines), 1)
            row[:, 1] += lines
            parts.append(row)
    table = torch.cat(parts)
    return table[table[:, 1].argsort()].to(torch.int32).contiguous()


def choose_grid(batch: Batch, radius: float, parts: tuple[int, int, int] = PARTS) -> Grid:
    """Bins for a search within `radius` (Å), on the CPU. A system has at least one bin.

    A cell that the search will refuse gets the bins of a cube of 1 Å.
    """
    positions, cell = batch.positions.detach().cpu().double(), batch.cell.detach().cpu().double()
    pbc, index = batch.pbc.cpu(), batch.system_index.cpu()
    searched = countable(cell, pbc, radius)[:, None, None]
    full = torch.where(searched, lattice.complete(cell, pbc), torch.eye(3, dtype=cell.dtype, device=cell.device))
    inverse = torch.linalg.inv(full)
    fractional = torch.nan_to_num(torch.einsum("ni,nij->nj", positions, inverse[index]), 0.0, 0.0, 0.0)
    scatter = index[:, None].expand(-1, 3)
    low = torch.full_like(cell[:, 0], torch.inf).scatter_reduce(0, scatter, fractional, "amin")
    high = torch.full_like(cell[:, 0], -torch.inf).scatter_reduce(0, scatter, fractional, "amax")
    extent = torch.where(pbc, 1.0, (high - low).clamp(0.0, 1e7))
    # Widths of bins in fractional units: radius / height for a part of one.
    width = (
        radius * torch.linalg.vector_norm(inverse, dim=-2) / (SLACK * inverse.new_tensor(parts, dtype=torch.float64))
    )
    # Less than three bins along a period leave candidates in many images, and few bins to share out.
    width = torch.where(pbc & (torch.floor(1 / width) < FEWEST_BINS), width / 2, width)
    most = MOST_BINS * batch.counts().cpu().clamp(min=8).double()
    for _ in range(3):  # no direction has less than one bin, so widening the others takes more than one round
        bins = torch.floor(extent / width).clamp(min=1) + (~pbc).double()
        excess = (bins.prod(-1) / most).clamp(min=1)
        wide = (bins > 2).sum(-1).clamp(min=1)
        width = torch.where(bins > 2, width * (excess ** (1 / wide))[:, None], width)
    bins = torch.floor(extent / width).clamp(min=1) + (~pbc).double()
    scales = torch.where(pbc, bins, 1 / width)
    whole = bins.long()
    sizes = whole.prod(-1)
    reaches = torch.floor(radius * torch.linalg.vector_norm(inverse, dim=-2) * torch.where(pbc, bins, 0.0))
    reaches = 2 * torch.where(pbc, reaches, torch.floor(radius * scales)) + 3
    seen = torch.where(pbc, reaches, torch.minimum(reaches, bins))
    candidates = batch.counts().cpu() * (seen / bins).prod(-1)
    images = torch.where(seen > bins, torch.ceil(seen / bins) + 1, 1.0)  # in which a line ends and begins again
    lines = images[:, 0] * seen[:, 1] * seen[:, 2]
    grids = torch.cat([whole, (sizes.cumsum(0) - sizes)[:, None]], 1)
    largest = [float(each.max()) if len(each) else 0.0 for each in (candidates, lines)]
    return Grid(grids.to(torch.int32).contiguous(), scales.contiguous(), int(sizes.sum()), largest[0], int(largest[1]))
