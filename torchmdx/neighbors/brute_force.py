"""The reference search: every pair of every image, in plain torch. Slow; the oracle of the faster searches."""

from __future__ import annotations

import torch
from torch import Tensor

from torchmdx.neighbors.capacity import require_memory
from torchmdx.neighbors.edges import Edges, from_lists
from torchmdx.neighbors.images import reach, require_countable, too_many
from torchmdx.structures import cell as lattice
from torchmdx.structures.system import Batch

# Distances computed at a time: limits the memory for large systems or many images to a few hundred MB.
CHUNK = 4_000_000


def brute_force(batch: Batch, cutoff: float, capacity: int | None = None) -> Edges:
    """All pairs closer than `cutoff` (Å) in a batch of any cells, sorted by target, then source, then shift.

    Args:
        capacity: Number of slots; None for as many as there are edges.

    Raises:
        ValueError: For a cutoff that is not positive and finite.
        CapacityError: For cells that can't be searched (`images`) and more edges than memory holds.
    """
    require_cutoff(cutoff)
    require_countable(batch.cell, batch.pbc, cutoff)
    if (expected := too_many(batch, cutoff)) is not None:
        require_memory(expected)
    with torch.no_grad():
        parts = []
        first = 0
        for count, cell, pbc in zip(batch.counts().tolist(), batch.cell, batch.pbc, strict=True):
            parts.append(_search(batch.positions[first : first + count], cell, pbc, cutoff, first))
            first += count
        target, source, shifts = (torch.cat(columns) for columns in zip(*parts, strict=True))
        return from_lists(target, source, shifts, batch.num_atoms, len(target) if capacity is None else capacity)


def require_cutoff(cutoff: float) -> None:
    """Raises ValueError unless the cutoff is a positive, finite length."""
    if not (0 < cutoff < float("inf")):
        raise ValueError(f"cutoff must be > 0 Å and finite, got {cutoff}")


def image_shifts(cell: Tensor, pbc: Tensor, cutoff: float) -> Tensor:
    """Translations [M,3] int64 that can bring an atom of the cell within the cutoff of another one in it."""
    cells = reach(cell[None], pbc[None], cutoff)[0]
    # Fractional coordinates differ by less than 1, so |n| < cells + 1; the margin is for rounding.
    most = [int(r) if p else 0 for r, p in zip(torch.floor(cells + 1 + 1e-6).tolist(), pbc.tolist(), strict=True)]
    ranges = [torch.arange(-m, m + 1, device=cell.device) for m in most]
    return torch.cartesian_prod(*ranges)


def _search(positions: Tensor, cell: Tensor, pbc: Tensor, cutoff: float, first: int) -> tuple[Tensor, Tensor, Tensor]:
    """(target, source, shifts) of one system, sorted; atom numbers start at `first`."""
    num_atoms = len(positions)
    wrapped, images = lattice.wrap(
        positions, cell[None], pbc[None], torch.zeros(num_atoms, dtype=torch.int64, device=positions.device)
    )
    shifts = image_shifts(cell, pbc, cutoff)
    translations = shifts.to(cell.dtype) @ cell
    atoms = torch.arange(num_atoms, device=positions.device)
    # Many images of many atoms are processed in pieces, even for a single target.
    rows = max(1, CHUNK // max(1, num_atoms * len(shifts)))
    pieces = max(1, CHUNK // max(1, num_atoms))
    found = []
    for start in range(0, num_atoms, rows):
        here, in_row = wrapped[start : start + rows], []
        for piece in range(0, len(shifts), pieces):
            some = slice(piece, piece + pieces)
            vectors = wrapped[None, :, None] - here[:, None, None] + translations[some]  # [rows, N, M, 3]
            near = (vectors**2).sum(-1) < cutoff**2
            itself = (shifts[some] == 0).all(-1)
            near &= ~((atoms[start : start + rows, None, None] == atoms[None, :, None]) & itself)
            target, source, which = near.nonzero(as_tuple=True)
            in_row.append((target + start, source, which + piece))
        target, source, which = (torch.cat(columns) for columns in zip(*in_row, strict=True))
        if len(in_row) > 1:  # one target, whose sources must ascend
            order = source.argsort(stable=True)
            target, source, which = target[order], source[order], which[order]
        found.append((target, source, which))
    if not found:
        empty = positions.new_zeros(0, dtype=torch.int64)
        return empty, empty, positions.new_zeros(0, 3, dtype=torch.int64)
    target, source, which = (torch.cat(columns) for columns in zip(*found, strict=True))
    # Undo the wrapping: r = wrapped + images @ cell.
    unwrapped = shifts[which] - images[source] + images[target]
    return target + first, source + first, unwrapped
