"""Displacements along normal modes, from the classical harmonic distribution at a temperature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchmdx.structures.units import BOLTZMANN, FORCE_TO_ACCELERATION

if TYPE_CHECKING:
    from ase import Atoms

STEP = 0.01  # Å: displacement of the numerical Hessian
LIGHT_CM = 2.99792458e-5  # cm/fs
SAME_DIRECTION = 1e-6  # of the largest singular value: below it rigid motions are linearly dependent


@dataclass(frozen=True, eq=False)
class Modes:
    """curvatures [M] eV/(Å² amu), ascending; directions [M,3N]: mass-weighted, orthonormal; masses [3N] amu."""

    curvatures: np.ndarray
    directions: np.ndarray
    masses: np.ndarray

    @property
    def wavenumbers(self) -> np.ndarray:
        """Wavenumber of each mode, 1/cm; negative if it is imaginary."""
        frequency = np.sqrt(np.abs(self.curvatures) * FORCE_TO_ACCELERATION)
        return np.sign(self.curvatures) * frequency / (2 * np.pi * LIGHT_CM)

    def displacement(self, rng: np.random.Generator, temperature: float, softest: float) -> np.ndarray:
        """Displacements [N,3] Å of one random structure, temperature in K.

        Each mode gets kT/2 of potential energy on average. Modes below `softest` (1/cm), and imaginary ones, get
        its curvature: straight displacements describe wide torsions badly.
        """
        least = (2 * np.pi * LIGHT_CM * softest) ** 2 / FORCE_TO_ACCELERATION
        widths = np.sqrt(BOLTZMANN * temperature / np.maximum(self.curvatures, least))
        weighted = (widths * rng.standard_normal(len(widths))) @ self.directions
        return (weighted / np.sqrt(self.masses)).reshape(-1, 3)


def normal_modes(atoms: Atoms, pulse: Callable[[], None]) -> Modes:
    """Modes of a relaxed structure, without rigid motions, from 6N evaluations of its calculator."""
    masses = np.repeat(atoms.get_masses(), 3)
    weighted = _hessian(atoms, pulse) / np.sqrt(masses[:, None] * masses)
    inner = _inner_motions(atoms, masses)
    curvatures, vectors = np.linalg.eigh(inner @ weighted @ inner.T)
    return Modes(curvatures, vectors.T @ inner, masses)


def _hessian(atoms: Atoms, pulse: Callable[[], None]) -> np.ndarray:
    """Second derivatives [3N,3N] eV/Å² by central differences of forces."""
    start, rows = atoms.positions.copy(), []
    for index in np.ndindex(start.shape):
        gradients = []
        for sign in (1, -1):
            atoms.positions = start
            atoms.positions[index] += sign * STEP
            gradients.append(-atoms.get_forces().ravel())
            pulse()
        rows.append((gradients[0] - gradients[1]) / (2 * STEP))
    atoms.positions = start
    hessian = np.array(rows)
    return (hessian + hessian.T) / 2


def _inner_motions(atoms: Atoms, masses: np.ndarray) -> np.ndarray:
    """Orthonormal mass-weighted directions [M,3N] other than translations and, of a molecule, rotations."""
    root = np.sqrt(masses)
    whole = [np.tile(axis, len(atoms)) * root for axis in np.eye(3)]
    if not atoms.pbc.any():
        arms = atoms.positions - atoms.get_center_of_mass()
        whole += [np.cross(axis, arms).ravel() * root for axis in np.eye(3)]
    _, sizes, directions = np.linalg.svd(np.array(whole))
    rank = int((sizes > SAME_DIRECTION * sizes[0]).sum())  # a linear molecule has two rotations, an atom none
    return directions[rank:]
