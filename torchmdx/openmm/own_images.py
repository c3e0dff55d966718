"""The distance of a region from its own periodic images."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchmdx.neighbors.search import EdgeSearch
from torchmdx.structures.system import Batch, System


class Contact(NamedTuple):
    """Two atoms of a region, one of them in a periodic image of the region, and their distance in Å."""

    first: int
    second: int
    distance: float


def warn_of_own_image(region: System, cutoff: float, label: Callable[[int], str]) -> None:
    """Warns of a region that the potential sees together with its own periodic images. label: of an atom, by index."""
    if (contact := nearest_own_image(region, cutoff)) is None:
        return
    first, second, distance = contact
    warnings.warn(
        f"the region of the potential is within its cutoff of its own periodic image: {label(first)} is "
        f"{distance:.2f} Å from the image of {label(second)}, and the cutoff is {cutoff:.2f} Å. The energy of the "
        "region includes its images, and in an ML/MM system those of the force field as well: a box that is larger by "
        f"{cutoff - distance:.2f} Å avoids it, or periodic=False, with which the potential has no images",
        UserWarning,
        stacklevel=2,
    )


def nearest_own_image(region: System, cutoff: float) -> Contact | None:
    """The shortest distance below a cutoff (Å) from a region to another image of itself; None if there is none.

    The pairs of atoms within the cutoff, from the nearest to the farthest, assemble the region, whose atoms may be
    wrapped into the box in any way. A pair of atoms that are assembled already is one with an image if it leads to
    another copy of the atom.
    """
    if not region.pbc.any():
        return None
    batch = Batch.of(region)
    edges = EdgeSearch(cutoff).allocate(batch).trimmed()
    if not edges.shifts.any():
        return None
    lengths = edges.vectors(batch.positions, batch.cell, batch.system_index).norm(dim=1).numpy()
    source, target, shifts = (x.numpy() for x in (edges.source, edges.target, edges.shifts))
    assembled = _Assembled()
    for k in np.argsort(lengths, kind="stable"):
        if not assembled.add(int(target[k]), int(source[k]), shifts[k].astype(np.int64)):
            return Contact(int(target[k]), int(source[k]), float(lengths[k]))
    return None


class _Assembled:
    """Atoms that are joined, each with its parent and the cell it is in relative to it."""

    def __init__(self) -> None:
        self.parents: dict[int, int] = {}
        self.cells: dict[int, NDArray[np.int64]] = {}

    def add(self, first: int, second: int, cell: NDArray[np.int64]) -> bool:
        """Joins `second`, in a cell relative to that of `first`; False if it is joined already, in another cell."""
        (root, own), (other_root, other) = self._root(first), self._root(second)
        if root == other_root:
            return bool((other - own == cell).all())
        self.parents[other_root], self.cells[other_root] = root, own + cell - other
        return True

    def _root(self, atom: int) -> tuple[int, NDArray[np.int64]]:
        path = []
        while atom in self.parents:
            path.append(atom)
            atom = self.parents[atom]
        cell = np.zeros(3, dtype=np.int64)
        for passed in reversed(path):
            cell = cell + self.cells[passed]
            self.parents[passed], self.cells[passed] = atom, cell
        return atom, cell
