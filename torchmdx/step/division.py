"""Division of a structure into domains: bricks with equal numbers of atoms, and the copies of atoms around each."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Grid = tuple[int, int, int]

# Faces whose normals have a product below this are at right angles: distances are then those of Pythagoras.
RIGHT_ANGLE = 1e-9
# The cost of a ghost, in owned atoms: layers evaluate it only as far as it matters, on average in half of them.
GHOST_COST = 0.5
# A domain's part of the work below which a division pays: the host chooses positions and adds forces.
WORTH_DIVIDING = 0.75


@dataclass(frozen=True, eq=False)
class Share:
    """The atoms of a domain; the positions of its copies are positions[atoms] + shifts @ cell.

    Attributes:
        atoms ([M]): Owned ones first, then ghosts by hops.
        shifts ([M,3]): Whole lattice vectors.
        hops ([M]): As for `DomainStep.assign`.
    """

    atoms: NDArray[np.int64]
    shifts: Floats
    hops: NDArray[np.int32]
    num_owned: int

    @functools.cached_property
    def moved(self) -> tuple[NDArray[np.int64], Floats]:
        """The copies that are shifted, and their shifts."""
        moved = np.flatnonzero(self.shifts.any(1))
        return moved, self.shifts[moved]


@dataclass(frozen=True, eq=False)
class Division:
    """The shares of all domains, and positions [N,3] Å and cell [3,3] Å at which they were made.

    Attributes:
        reach, skin: Å; ghosts reach `reach + skin` from the bricks.
    """

    shares: list[Share]
    positions: Floats
    cell: Floats
    reach: float
    skin: float

    def allowed(self, cell: Floats) -> tuple[Floats | None, float]:
        """(deformation [3,3], None for the same cell; how far atoms may have moved, Å) of a cell [3,3].

        While no atom has moved by more, apart from the deformation, the shares have all atoms within `reach`. Of the
        skin, a change of the cell takes the largest shrinkage of `reach + skin`; the rest is that of two atoms.
        """
        if np.array_equal(cell, self.cell):
            return None, self.skin / 2
        deform = np.asarray(np.linalg.solve(self.cell, cell), dtype=np.float64)
        shrinkage = max(0.0, 1 - float(np.linalg.svd(deform, compute_uv=False)[-1]))
        return deform, (self.skin - shrinkage * (self.reach + self.skin)) / 2

    def holds(self, positions: Floats, cell: Floats, every: int = 1) -> bool:
        """Whether no atom has moved by more than is allowed. every: one atom in this many is checked."""
        deform, allowed = self.allowed(cell)
        before = torch.from_numpy(self.positions[::every])
        if deform is not None:
            before = before @ torch.from_numpy(deform)
        if not len(before):
            return allowed >= 0
        x, y, z = (torch.from_numpy(positions[::every]) - before).square_().unbind(1)
        return math.sqrt(float((x + y).add_(z).max())) <= allowed


def divide(
    positions: Floats, cell: Floats, pbc: NDArray[np.bool_], grid: Grid, *, reach: float, skin: float, cutoff: float
) -> Division:
    """Cuts a structure into grid[k] parts along each cell vector, with equal numbers of atoms.

    Args:
        cell ([3,3]): Of full rank. Ghosts are copies of all atoms within reach + skin of a brick; along directions that
            are not cut there are none, so that these stay as periodic as they are.
    """
    cut = np.array(grid) > 1
    inverse = np.asarray(np.linalg.inv(cell), dtype=np.float64)
    places = positions @ inverse
    images = np.where(cut & pbc, np.floor(places), 0.0)
    places -= images
    space = _Space(places, cut, pbc, inverse)
    shares = []
    for brick in _bricks(places, grid, pbc):
        ghosts, shifts, apart = space.around(brick, reach + skin)
        hops = np.ceil((apart - skin) / cutoff).clip(min=1).astype(np.int32)
        order = np.argsort(hops, kind="stable")
        atoms = np.concatenate([brick.owned, ghosts[order]])
        shifts = np.concatenate([np.zeros((len(brick.owned), 3)), shifts[order]]) - images[atoms]
        hops = np.concatenate([np.zeros(len(brick.owned), np.int32), hops[order]])
        shares.append(Share(atoms, shifts, hops, len(brick.owned)))
    return Division(shares, positions.copy(), cell.copy(), reach, skin)


def choose_grid(positions: Floats, cell: Floats, pbc: NDArray[np.bool_], parts: int, reach: float) -> Grid:
    """The grid of at most `parts` bricks with the least work for a domain, ghosts included.

    Fewer than `parts` if more would not make it less, where ghosts outweigh what is divided; one if it is hardly less.
    """
    inverse = np.linalg.inv(cell)
    spans = 1 / np.linalg.norm(inverse, axis=0)
    if len(positions):
        spans = spans * np.where(pbc, 1.0, np.ptp(positions @ inverse, axis=0))
    best, least = (1, 1, 1), WORTH_DIVIDING
    for count in range(parts, 1, -1):
        for grid in grids(count):
            shares = [_share(span, n, bool(p), reach) for span, n, p in zip(spans, grid, pbc, strict=True)]
            if math.prod(shares) < least * (1 - 1e-9):
                best, least = grid, math.prod(shares)
    return best


def grids(count: int) -> Iterator[Grid]:
    """All grids of `count` bricks."""
    for first in range(1, count + 1):
        for second in range(1, count // first + 1):
            if count % (first * second) == 0:
                yield first, second, count // (first * second)


def _share(span: float, parts: int, periodic: bool, reach: float) -> float:
    """A domain's part of the work for a structure, by one direction."""
    if parts == 1:
        return 1.0
    share = 1 / parts + GHOST_COST * 2 * reach / max(span, 1e-9)
    return share if periodic else min(share, 1.0)


@dataclass(frozen=True, eq=False)
class _Brick:
    """owned: its atoms; low, high [3]: where it ends, in fractional coordinates."""

    owned: NDArray[np.int64]
    low: Floats
    high: Floats


def _bricks(places: Floats, grid: Sequence[int], pbc: NDArray[np.bool_]) -> list[_Brick]:
    whole = _Brick(np.arange(len(places)), np.where(pbc, 0.0, -np.inf), np.where(pbc, 1.0, np.inf))
    found = [whole]
    for axis, parts in enumerate(grid):
        if parts > 1:
            found = [part for brick in found for part in _cut(places[:, axis], brick, axis, parts)]
    return found


def _cut(place: Floats, brick: _Brick, axis: int, parts: int) -> list[_Brick]:
    order = brick.owned[np.argsort(place[brick.owned], kind="stable")]
    ends = [len(order) * part // parts for part in range(parts + 1)]
    faces = [brick.low[axis]]
    for end in ends[1:-1]:
        near = place[order[max(end - 1, 0) : end + 1]]
        faces.append(float(near.mean()) if len(near) else faces[-1])
    faces.append(brick.high[axis])
    found = []
    for part in range(parts):
        low, high = brick.low.copy(), brick.high.copy()
        low[axis], high[axis] = faces[part], faces[part + 1]
        found.append(_Brick(np.sort(order[ends[part] : ends[part + 1]]), low, high))
    return found


class _Space:
    """All atoms, by fractional coordinates that are in [0, 1] along periodic directions that are cut."""

    def __init__(self, places: Floats, cut: NDArray[np.bool_], pbc: NDArray[np.bool_], inverse: Floats) -> None:
        # Fractional coordinates times heights are distances from a face.
        self.places, self.pbc = places, pbc
        self.axes: list[int] = np.flatnonzero(cut).tolist()
        lengths = np.linalg.norm(inverse, axis=0)
        self.heights = 1 / lengths
        normals = (inverse / lengths)[:, cut]
        products = np.abs(normals.T @ normals - np.eye(len(self.axes)))
        self.right_angles = bool(products.max(initial=0.0) < RIGHT_ANGLE)

    def around(self, brick: _Brick, reach: float) -> tuple[NDArray[np.int64], Floats, Floats]:
        """Copies of atoms within `reach` of a brick: (atoms [G], shifts [G,3], lower bounds of distances [G] Å)."""
        count = len(self.places) if len(brick.owned) else 0
        atoms, shifts, apart = np.arange(count), np.zeros((count, 3)), np.zeros(count)
        for axis in self.axes:
            found = [
                self._shifted(brick, axis, image, atoms, apart, reach) for image in self._images(brick, axis, reach)
            ]
            kept = np.concatenate([chosen for chosen, _, _ in found])
            apart = np.concatenate([distance for _, distance, _ in found])
            atoms, shifts = atoms[kept], shifts[kept]
            shifts[:, axis] = np.concatenate([np.full(len(chosen), image) for chosen, _, image in found])
        owned = np.zeros(len(self.places), dtype=bool)
        owned[brick.owned] = True
        ghosts = ~owned[atoms] | shifts.any(1)
        return atoms[ghosts], shifts[ghosts], apart[ghosts]

    def _images(self, brick: _Brick, axis: int, reach: float) -> range:
        if not self.pbc[axis]:
            return range(1)
        far = reach / self.heights[axis]
        return range(math.ceil(brick.low[axis] - far - 1), math.floor(brick.high[axis] + far) + 1)

    def _shifted(
        self, brick: _Brick, axis: int, image: int, atoms: NDArray[np.int64], apart: Floats, reach: float
    ) -> tuple[NDArray[np.int64], Floats, int]:
        """Which of these atoms are within reach after a shift along an axis, with their distances."""
        place = self.places[atoms, axis] + image
        outside = np.maximum(brick.low[axis] - place, place - brick.high[axis]).clip(min=0) * self.heights[axis]
        distance = np.hypot(apart, outside) if self.right_angles else np.maximum(apart, outside)
        chosen = np.flatnonzero(distance <= reach)
        return chosen, distance[chosen], image
