"""Geometries of one molecule from its conformers and bonds: thermal, rattled, scaled, twisted and stretched."""

from __future__ import annotations

import numpy as np
from start_file import Entry

BOLTZMANN = 8.617333e-5  # eV/K
VDW = {1: 1.1, 6: 1.7, 7: 1.55, 8: 1.52, 9: 1.47, 16: 1.8, 17: 1.75}  # Å
COVALENT = {1: 0.31, 6: 0.76, 7: 0.71, 8: 0.66, 9: 0.57, 16: 1.05, 17: 1.02}  # Å
SPRINGS = (30.0, 4.0, 0.25, 0.03)  # eV/Å² between atoms 1, 2, 3 and more bonds apart
LARGEST_MODE = 0.3  # Å: larger motions are not straight lines
NEAREST_BONDED = 0.6  # of the sum of covalent radii
NEAREST = 0.58  # of the sum of van der Waals radii, three bonds apart or more
MOST_DRAWS = 12


class Shaper:
    """Draws geometries of a molecule."""

    def __init__(self, entry: Entry, rng: np.random.Generator) -> None:
        self.entry = entry
        self._rng = rng
        self._apart = _bonds_apart(len(entry.numbers), entry.bonds)
        vdw = np.array([VDW[int(z)] for z in entry.numbers])
        covalent = np.array([COVALENT[int(z)] for z in entry.numbers])
        self._least = np.where(
            self._apart >= 3, NEAREST * (vdw[:, None] + vdw), NEAREST_BONDED * (covalent[:, None] + covalent)
        )
        np.fill_diagonal(self._least, -1.0)
        self._modes = [self._springs(positions) for positions in entry.conformers]
        sides = [_side(len(entry.numbers), entry.bonds, k) for k in range(len(entry.bonds))]
        self._open = [(*entry.bonds[k], side) for k, side in enumerate(sides) if side is not None]
        self._turnable = [
            (*entry.bonds[k], side)
            for k, side in enumerate(sides)
            if side is not None and not entry.fixed[k] and 1 < side.sum() < len(side) - 1
        ]

    def draw(self, kind: str) -> np.ndarray:
        """Positions [N,3] of one kind, whose atoms do not overlap."""
        for _ in range(MOST_DRAWS):
            which = int(self._rng.integers(len(self.entry.conformers)))
            positions = getattr(self, f"_{kind}")(which)
            if self._sound(positions):
                return np.asarray(positions)
        return self._warm(which, 200.0)

    def _thermal(self, which: int) -> np.ndarray:
        return self._warm(which, float(np.exp(self._rng.uniform(np.log(100), np.log(2000)))))

    def _rattle(self, which: int) -> np.ndarray:
        start = self.entry.conformers[which]
        return start + self._rng.normal(scale=self._rng.uniform(0.02, 0.15), size=start.shape)

    def _scale(self, which: int) -> np.ndarray:
        return self._warm(which, 300.0) * self._rng.uniform(0.93, 1.12)

    def _torsion(self, which: int) -> np.ndarray:
        positions = self._warm(which, 400.0)
        if not self._turnable:
            return self._thermal(which)
        count = min(len(self._turnable), int(self._rng.integers(1, 4)))
        for choice in self._rng.choice(len(self._turnable), count, replace=False):
            i, j, side = self._turnable[choice]
            positions[side] = _turned(positions[side], positions[i], positions[j], self._rng.uniform(0, 2 * np.pi))
        return positions

    def _stretch(self, which: int) -> np.ndarray:
        positions = self._warm(which, 300.0)
        if not self._open:
            return self._warm(which, 2000.0)
        i, j, side = self._open[self._rng.integers(len(self._open))]
        positions[side] += (positions[j] - positions[i]) * self._rng.uniform(-0.24, 0.45)
        return positions

    def _warm(self, which: int, temperature: float) -> np.ndarray:
        stiffness, vectors = self._modes[which]
        size = np.minimum(np.sqrt(BOLTZMANN * temperature / stiffness), LARGEST_MODE)
        moved = vectors @ (size * self._rng.standard_normal(len(size)))
        return np.asarray(self.entry.conformers[which] + moved.reshape(-1, 3))

    def _springs(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Stiffness and shape of the modes of atoms joined by springs that are at rest here; without the free ones."""
        count = len(positions)
        hessian = np.zeros((count, 3, count, 3))
        constants = np.array([0.0, *SPRINGS])[np.minimum(self._apart, 4)]
        vector = positions[:, None] - positions
        square = np.maximum((vector**2).sum(-1), 1e-12)
        blocks = np.einsum("ij,ijk,ijl->ijkl", constants / square, vector, vector)
        hessian -= blocks.transpose(0, 2, 1, 3)
        hessian[np.arange(count), :, np.arange(count)] += blocks.sum(1)
        values, vectors = np.linalg.eigh(hessian.reshape(3 * count, -1))
        kept = values > 1e-3
        return values[kept], vectors[:, kept]

    def _sound(self, positions: np.ndarray) -> bool:
        distance = np.linalg.norm(positions[:, None] - positions, axis=-1)
        return bool((distance > self._least).all())


def _bonds_apart(count: int, bonds: np.ndarray) -> np.ndarray:
    """How many bonds lie between two atoms, 4 for more than three."""
    apart = np.full((count, count), 4)
    joined = np.zeros((count, count), bool)
    joined[tuple(bonds.T)] = joined[tuple(bonds.T[::-1])] = True
    reach = np.eye(count, dtype=bool)
    np.fill_diagonal(apart, 0)
    for number in (1, 2, 3):
        reach = reach @ joined
        apart[reach & (apart == 4)] = number
    return apart


def _side(count: int, bonds: np.ndarray, cut: int) -> np.ndarray | None:
    """Atoms on the second atom's side of a bond, None where a ring goes around it."""
    side = np.zeros(count, bool)
    first, second = bonds[cut]
    joined: list[list[int]] = [[] for _ in range(count)]
    for k, (a, b) in enumerate(bonds.tolist()):
        if k != cut:
            joined[a].append(b)
            joined[b].append(a)
    waiting = [int(second)]
    while waiting:
        atom = waiting.pop()
        if not side[atom]:
            side[atom] = True
            waiting += joined[atom]
    return None if side[first] else side


def _turned(points: np.ndarray, start: np.ndarray, end: np.ndarray, angle: float) -> np.ndarray:
    axis = (end - start) / np.linalg.norm(end - start)
    relative = points - end
    along = (relative @ axis)[:, None] * axis
    return np.asarray(end + along + (relative - along) * np.cos(angle) + np.cross(axis, relative) * np.sin(angle))
