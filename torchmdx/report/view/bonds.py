"""Bonds from distances, molecules from bonds, and molecules in one piece inside a periodic cell."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

TOLERANCE = 0.45  # Å, added to the sum of two covalent radii, as in Open Babel and RDKit
# Alkali and alkaline earth metals, without beryllium and magnesium: their ions have neighbours, not bonds.
IONS = (3, 11, 19, 20, 37, 38, 55, 56, 87, 88)
# Nonmetals and metalloids. In a crystal that has some, metals are bonded to these alone: Mg-Mg of MgO is no bond.
NONMETALS = (1, 2, 5, 6, 7, 8, 9, 10, 14, 15, 16, 17, 18, 32, 33, 34, 35, 36, 51, 52, 53, 54, 85, 86)


def radii(numbers: Integers) -> Floats:
    """Covalent radius of each atom, Å; a negative one, which leaves no bond, for IONS and the noble gases He and Ne."""
    from ase.data import covalent_radii

    known = np.asarray(covalent_radii, dtype=np.float64)
    found = known[np.where(numbers < len(known), numbers, 0)]
    return np.where(np.isin(numbers, (*IONS, 2, 10)), -10.0, found)


def bonds(
    numbers: Integers, positions: Floats, cell: Floats | None, pbc: NDArray[np.bool_], *, crystal: bool
) -> tuple[Integers, ...]:
    """Bonds [B,2], the smaller index first, with the image [B,3] of the cell in which the second atom is bonded.

    Args:
        crystal: Whether the atoms are part of a periodic structure.
    """
    from vesin import NeighborList

    size = radii(numbers)
    reach = 2 * float(size.max(initial=0.0)) + TOLERANCE
    search = NeighborList(cutoff=reach, full_list=False)
    box = np.zeros((3, 3)) if cell is None else cell
    first, second, shifts, distances = search.compute(
        points=np.ascontiguousarray(positions), box=box, periodic=pbc, quantities="ijSd"
    )
    first, second, shifts = first.astype(np.int64), second.astype(np.int64), shifts.astype(np.int64)
    bonded = (distances < size[first] + size[second] + TOLERANCE) & (distances > 0.1)
    metal = ~np.isin(numbers, NONMETALS)
    if crystal and not metal.all():
        bonded &= ~(metal[first] & metal[second])
    first, second, shifts = first[bonded], second[bonded], shifts[bonded]
    swap = first > second
    first[swap], second[swap] = second[swap], first[swap]
    shifts[swap] *= -1
    order = np.lexsort((second, first))
    return np.stack([first, second], axis=1)[order], shifts[order]


@dataclass(frozen=True, eq=False)
class Molecules:
    """Bonded groups of atoms of a structure.

    Attributes:
        pairs: [B,2] bonds, across the faces of the cell as well.
        of: [N] the molecule of each atom.
        endless: [M] whether a molecule is bonded to its own periodic image, as a crystal is.
        levels: Pairs (atoms, parents), from the first atom of each molecule outwards.
    """

    pairs: Integers
    of: Integers
    endless: NDArray[np.bool_]
    levels: list[tuple[Integers, Integers]]

    @property
    def number(self) -> int:
        return len(self.endless)


def molecules(numbers: Integers, positions: Floats, cell: Floats | None, pbc: NDArray[np.bool_]) -> Molecules:
    """Molecules of one structure; cell [3,3] Å, None for no periodic direction."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    pbc = pbc if cell is not None else np.zeros(3, dtype=bool)
    pairs, shifts = bonds(numbers, positions, cell, pbc, crystal=bool(pbc.any()))
    size = len(numbers)
    graph = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(size, size))
    number, of = connected_components(graph, directed=False)
    of = of.astype(np.int64)
    levels, image = _levels(of, number, pairs, shifts)
    endless = np.zeros(number, dtype=bool)
    torn = (image[pairs[:, 1]] != image[pairs[:, 0]] + shifts).any(1)
    endless[of[pairs[torn, 0]]] = True
    return Molecules(np.unique(pairs, axis=0), of, endless, levels)


def _levels(
    of: Integers, number: int, pairs: Integers, shifts: Integers
) -> tuple[list[tuple[Integers, Integers]], Integers]:
    """All molecules searched outwards at once; also the image [N,3] of the cell in which each atom is reached."""
    source = np.concatenate([pairs[:, 0], pairs[:, 1]])
    target = np.concatenate([pairs[:, 1], pairs[:, 0]])
    across = np.concatenate([shifts, -shifts])
    image, seen = np.zeros((len(of), 3), dtype=np.int64), np.zeros(len(of), dtype=bool)
    first = np.full(number, len(of))
    np.minimum.at(first, of, np.arange(len(of)))
    seen[first] = True
    levels: list[tuple[Integers, Integers]] = []
    while True:
        new = np.flatnonzero(seen[source] & ~seen[target])
        if not len(new):
            return levels, image
        atoms, kept = np.unique(target[new], return_index=True)
        edges = new[kept]
        image[atoms] = image[source[edges]] + across[edges]
        seen[atoms] = True
        levels.append((atoms, source[edges]))


def whole(positions: Floats, cells: Floats, pbc: NDArray[np.bool_], found: Molecules) -> Floats:
    """Positions [F,N,3] with every molecule in one piece and its centre inside the cells [F,3,3].

    Endless molecules follow their atoms from the first frame, which is inside the cell.
    """
    fractional = np.linalg.solve(cells.transpose(0, 2, 1), positions.transpose(0, 2, 1)).transpose(0, 2, 1)
    endless = found.endless[found.of]
    start = fractional[0] - np.where(pbc, np.floor(fractional[0] + 1e-3), 0.0)
    followed = fractional - np.where(pbc, np.round(fractional - start), 0.0)
    for atoms, parents in found.levels:
        step = fractional[:, atoms] - fractional[:, parents]
        step -= np.where(pbc, np.round(step), 0.0)
        fractional[:, atoms] = fractional[:, parents] + step
    centre = np.zeros((found.number, len(positions), 3))
    np.add.at(centre, found.of, fractional.transpose(1, 0, 2))
    centre = (centre / np.bincount(found.of, minlength=found.number)[:, None, None]).transpose(1, 0, 2)
    fractional -= np.where(pbc, np.floor(centre + 1e-6), 0.0)[:, found.of]
    return np.asarray(np.where(endless[:, None], followed, fractional) @ cells)
