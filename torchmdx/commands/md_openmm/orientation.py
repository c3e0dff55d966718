"""Crystals in the orientation of OpenMM, and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchmdx.dynamics.orientation import standard

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Orientation:
    """How a crystal stands in OpenMM: vectors v of its file are v @ rotation.T, both [3,3].

    Attributes:
        basis: Whole numbers. The cell of the file is basis @ cell @ rotation.
    """

    rotation: Array
    basis: Array

    @property
    def is_rotated(self) -> bool:
        return not np.array_equal(self.rotation, np.eye(3))

    def turned(self, vectors: Array) -> Array:
        """Vectors [N,3] of the file as OpenMM has them."""
        return vectors @ self.rotation.T

    def back(self, vectors: Array) -> Array:
        """Vectors [N,3] of OpenMM as the file has them."""
        return vectors @ self.rotation

    def cell_back(self, cell: Array) -> Array:
        """A cell [3,3] of OpenMM, which may have changed, in orientation and basis of the file."""
        found: Array = self.basis @ cell @ self.rotation
        return found


def orientation_of(cell: Array) -> tuple[Array, Orientation]:
    """The cell of OpenMM for the lattice of `cell` [3,3] Å: a along x, b in the xy plane, off-diagonals at most half.

    Rotates, and chooses another basis of the same lattice; never a mirror image.
    """
    lower, rotation = standard(cell)
    a, b, c = np.tril(lower)
    c = c - b * np.round(c[1] / b[1])
    c = c - a * np.round(c[0] / a[0])
    b = b - a * np.round(b[0] / a[0])
    found = np.array([a, b, c])
    basis = np.round(cell @ rotation.T @ np.linalg.inv(found))
    return found, Orientation(rotation, basis)
