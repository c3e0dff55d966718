"""Neighbours among explicit periodic images, in plain torch.

Audits take their lists from here: nothing is shared with the searches whose lists they judge, and large structures are
binned, which `brute_force` does not do.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from torchmdx.neighbors.edges import Edges, from_lists
from torchmdx.structures import cell as lattice
from torchmdx.structures.system import Batch

# Pairs looked at at a time, and how much wider than the cutoff bins are, against rounding.
CHUNK = 4_000_000
WIDER = 1e-6


def copies(places: Tensor, pbc: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Atoms [M] and whole shifts [M,3] of all copies with fractional coordinates from low [3] to high [3].

    Args:
        places ([N,3]): Fractional coordinates of the atoms. Only periodic directions have copies and limits.
    """
    atoms, shifts = torch.arange(len(places), device=places.device), torch.zeros_like(places)
    for axis, periodic in enumerate(pbc.tolist()):
        if not periodic or not len(atoms):
            continue
        place, found = places[:, axis].index_select(0, atoms), []
        first, last = float(low[axis] - place.max()), float(high[axis] - place.min())
        for image in range(math.ceil(first), math.floor(last) + 1):
            near = ((place + image >= low[axis]) & (place + image <= high[axis])).nonzero().squeeze(-1)
            moved = shifts.index_select(0, near)
            moved[:, axis] = image
            found.append((atoms.index_select(0, near), moved))
        atoms, shifts = (torch.cat(columns) for columns in zip(*found, strict=True))
    return atoms, shifts


def pairs(points: Tensor, num_targets: int, cutoff: float) -> tuple[Tensor, Tensor]:
    """(target, source) of all pairs of points [M,3] Å closer than the cutoff whose target is among the first ones.

    Sorted by target, then source; a point is no neighbour of itself.
    """
    order, ordered, keys, strides = _binned(points, cutoff * (1 + WIDER))
    found = []
    for offset in itertools.product((-1, 0, 1), repeat=3):
        wanted = keys[:num_targets] + (strides * strides.new_tensor(offset)).sum()
        first, last = torch.searchsorted(ordered, wanted), torch.searchsorted(ordered, wanted, right=True)
        rows = max(1, CHUNK // max(1, int((last - first).max()))) if num_targets else 1
        for start in range(0, num_targets, rows):
            found.append(_near(points, order, first, last, slice(start, start + rows), cutoff))
    if not found:
        return order.new_zeros(0), order.new_zeros(0)
    target, source = (torch.cat(columns) for columns in zip(*found, strict=True))
    by_target = (target * len(points) + source).argsort()
    return target[by_target], source[by_target]


def _binned(points: Tensor, size: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(order of points by bin, their bins in this order, the bin of each point, steps from bin to bin [3])."""
    if not len(points):
        none = torch.zeros(0, dtype=torch.int64, device=points.device)
        return none, none, none, none.new_ones(3)
    bins = ((points - points.amin(0)) / size).floor().long() + 1
    most = bins.amax(0) + 2
    strides = torch.stack([most[1] * most[2], most[2], torch.ones_like(most[2])])
    keys = (bins * strides).sum(-1)
    order = keys.argsort(stable=True)
    return order, keys[order], keys, strides


def _near(
    points: Tensor, order: Tensor, first: Tensor, last: Tensor, rows: slice, cutoff: float
) -> tuple[Tensor, Tensor]:
    """Pairs of these targets with points of one bin each, from `first` to `last` in the order by bins."""
    first, counts = first[rows], (last - first)[rows]
    target = torch.repeat_interleave(torch.arange(len(first), device=points.device), counts)
    number = torch.arange(len(target), device=points.device) - (counts.cumsum(0) - counts)[target]
    source = order[first[target] + number]
    target = target + rows.start
    near = ((points[source] - points[target]) ** 2).sum(-1) < cutoff**2
    near &= source != target
    return target[near], source[near]


def search_explicitly(batch: Batch, cutoff: float) -> Edges:
    """The edges that `brute_force` finds, of systems of any cells."""
    parts, first = [], 0
    for count, cell, pbc in zip(batch.counts().tolist(), batch.cell, batch.pbc, strict=True):
        if count:
            parts.append(_of_system(batch.positions[first : first + count].detach(), cell, pbc, cutoff, first))
        first += count
    if not parts:
        none = torch.zeros(0, dtype=torch.int64, device=batch.positions.device)
        return from_lists(none, none, none.new_zeros(0, 3), batch.num_atoms, 0)
    target, source, shifts = (torch.cat(columns) for columns in zip(*parts, strict=True))
    return from_lists(target, source, shifts, batch.num_atoms, len(target))


def _of_system(
    positions: Tensor, cell: Tensor, pbc: Tensor, cutoff: float, first: int
) -> tuple[Tensor, Tensor, Tensor]:
    full = lattice.complete(cell[None], pbc[None])[0]
    inverse = torch.linalg.inv(full)
    margin = cutoff * (1 + WIDER) * torch.linalg.vector_norm(inverse, dim=0)
    places = positions @ inverse
    images = torch.where(pbc, torch.floor(places), 0.0)
    atoms, shifts = copies(places - images, pbc, -margin, 1 + margin)
    order = (shifts != 0).any(-1).long().argsort(stable=True)  # the atoms themselves first, in order
    atoms, shifts = atoms[order], shifts[order]
    near = positions - images @ full
    target, copy = pairs(near[atoms] + shifts @ full, len(positions), cutoff)
    source = atoms[copy]
    return target + first, source + first, (shifts[copy] - images[source] + images[target]).round().long()
