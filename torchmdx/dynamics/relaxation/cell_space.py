"""Which strains a moving cell may take: a linear space, given by what must not change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

VOIGT = ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))
VOIGT_NAMES = ("xx", "yy", "zz", "yz", "xz", "xy")
VECTORS = "abc"
ZERO = 1e-10


@dataclass(frozen=True, kw_only=True)
class CellSpace:
    """How cells may move; lattice vectors along directions that are not periodic never do.

    Attributes:
        mask: Which strains are free, in Voigt order xx, yy, zz, yz, xz, xy, as in ASE; None for all.
        hydrostatic: All free directions alike.
        constant_volume: Without a change of the volume.
        fixed_vectors: Lattice vectors that keep length and direction, such as "c" or "ab".
    """

    mask: tuple[bool, ...] | None = None
    hydrostatic: bool = False
    constant_volume: bool = False
    fixed_vectors: str = ""

    def __post_init__(self) -> None:
        if self.mask is not None:
            given = tuple(self.mask)
            if len(given) != len(VOIGT) or not all(value in (0, 1) for value in given):
                raise ValueError(f"a mask of the cell must be six of 0 and 1, {' '.join(VOIGT_NAMES)}, got {self.mask}")
            object.__setattr__(self, "mask", tuple(bool(value) for value in given))
        vectors = self.fixed_vectors
        if len(set(vectors)) != len(vectors) or not set(vectors) <= set(VECTORS):
            raise ValueError(f"fixed vectors must be letters of {VECTORS!r}, each once, got {vectors!r}")
        if self.hydrostatic and self.constant_volume:
            raise ValueError("a hydrostatic strain changes the volume, got hydrostatic with constant volume")

    def __bool__(self) -> bool:
        """Whether anything is restricted."""
        return self != CellSpace()

    def projector(self, cell: NDArray[np.float64], pbc: ArrayLike) -> NDArray[np.float64]:
        """[9,9], onto the strains that are allowed for a cell [3,3], flattened. Raises ValueError if there are none."""
        fixed = list(cell[self.fixed(pbc)])
        space = np.array([_symmetric(i, j) for i, j in VOIGT])
        if self.hydrostatic:
            space = _complement(fixed).reshape(1, 9)
        forbidden: list[Any] = [np.kron(np.eye(3), vector / np.linalg.norm(vector)) for vector in fixed]
        forbidden += [_symmetric(i, j)[None] for (i, j), free in zip(VOIGT, self.mask or (), strict=False) if not free]
        forbidden += [np.eye(3).reshape(1, 9)] * self.constant_volume
        if forbidden:
            space = _null_space(np.concatenate(forbidden) @ space.T) @ space
        if not len(space):
            raise ValueError(f"the cell cannot move in any way with {self} and pbc {np.asarray(pbc).tolist()}")
        basis = np.linalg.qr(space.T)[0]
        return basis @ basis.T

    def fixed(self, pbc: ArrayLike) -> NDArray[np.bool_]:
        """Which lattice vectors [3] stay as they are."""
        return np.array([name in self.fixed_vectors for name in VECTORS]) | ~np.broadcast_to(np.asarray(pbc, bool), 3)


ANY_STRAIN = CellSpace()


def _symmetric(i: int, j: int) -> NDArray[np.float64]:
    found = np.zeros((3, 3))
    found[i, j] = found[j, i] = 1
    return found.reshape(9)


def _complement(vectors: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The projector [3,3] onto what is orthogonal to all vectors."""
    if not vectors:
        return np.eye(3)
    basis = np.linalg.qr(np.array(vectors).T)[0]
    return np.eye(3) - basis @ basis.T


def _null_space(equations: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows that span the solutions of equations · x = 0."""
    _, values, rows = np.linalg.svd(equations)
    rank = int((values > ZERO).sum())
    return rows[rank:]
