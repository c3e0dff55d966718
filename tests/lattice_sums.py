"""Lattice sums for the tests, as loops over published formulas that share no code with the package."""

from __future__ import annotations

import itertools
import math

import numpy as np

# Of the distance of nearest neighbours, published: rock salt, caesium chloride, zinc blende.
MADELUNG = {"rocksalt": 1.747564594633182, "cesiumchloride": 1.762674773070991, "zincblende": 1.638055053388789}
WIGNER = 2.837297479480620  # of a simple cubic lattice of point charges in a uniform background, E = -q² WIGNER / 2L


def benson() -> float:
    """The Madelung constant of rock salt, 12 π Σ sech²(π/2 √(m² + n²)) over odd m and n (Benson 1956)."""
    odd = range(1, 30, 2)
    return 12 * math.pi * sum(math.cosh(math.pi / 2 * math.hypot(m, n)) ** -2 for m in odd for n in odd)


def bulk_potentials(positions, cell, alpha: float = 0.0) -> np.ndarray:
    """ψ [N,N] of three periodic directions: potential at i of unit charges at j, all its images and a background.

    ψ_ii leaves the charge itself out. alpha: 0 for one that converges as fast in both sums.
    """
    volume = abs(np.linalg.det(cell))
    alpha = alpha or math.sqrt(math.pi) / volume ** (1 / 3)
    far, longest = 6.5 / alpha, 13 * alpha
    dual = 2 * math.pi * np.linalg.inv(cell).T
    between = positions[:, None] - positions[None]
    found = np.full(between.shape[:2], -math.pi / (volume * alpha**2))
    found -= np.eye(len(positions)) * 2 * alpha / math.sqrt(math.pi)
    for n in box(np.linalg.inv(cell).T, far + np.abs(between).max() * 2):
        r = np.linalg.norm(between + n @ cell, axis=-1)
        found += np.where(r > 1e-9, np.vectorize(math.erfc)(alpha * r) / np.where(r > 1e-9, r, 1.0), 0.0)
    for n in box(cell / (2 * math.pi), longest):
        k = n @ dual
        square = k @ k
        if 0 < square < longest**2:
            found += 4 * math.pi / volume * math.exp(-square / (4 * alpha**2)) / square * np.cos(between @ k)
    return found


def slab_potentials(positions, cell, alpha: float = 0.35) -> np.ndarray:
    """ψ [N,N] as `bulk_potentials`, of two periodic directions x and y, by the exact sum of Parry (1975)."""
    plane = cell[:2, :2]
    area, dual = abs(np.linalg.det(plane)), 2 * math.pi * np.linalg.inv(plane).T
    between = positions[:, None] - positions[None]
    z, erf, erfc = between[..., 2], np.vectorize(math.erf), np.vectorize(math.erfc)
    found = -np.eye(len(positions)) * 2 * alpha / math.sqrt(math.pi)
    found = found - 2 * math.pi / area * (
        z * erf(alpha * z) + np.exp(-((alpha * z) ** 2)) / (alpha * math.sqrt(math.pi))
    )
    for n in box(np.linalg.inv(plane).T, 6.5 / alpha + np.abs(between).max() * 2):
        r = np.linalg.norm(between + np.append(n @ plane, 0.0), axis=-1)
        found += np.where(r > 1e-9, erfc(alpha * r) / np.where(r > 1e-9, r, 1.0), 0.0)
    for n in box(plane / (2 * math.pi), 13 * alpha):
        k = n @ dual
        size = math.sqrt(k @ k)
        if 0 < size < 13 * alpha:
            up = np.exp(size * z) * erfc(size / (2 * alpha) + alpha * z)
            down = np.exp(-size * z) * erfc(size / (2 * alpha) - alpha * z)
            found += math.pi / (area * size) * np.cos(between[..., :2] @ k) * (up + down)
    return found


def box(rows, reach: float):
    """Every vector of integers up to `reach` times the lengths of the rows."""
    most = [math.ceil(reach * np.linalg.norm(row)) for row in rows]
    return (np.array(n) for n in itertools.product(*(range(-m, m + 1) for m in most)))
