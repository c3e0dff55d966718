"""Distances, angles and torsions of atoms, with their gradients, in NumPy. Shapes: M sets of n atoms, [M,n,3]."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def distances(places: Floats) -> Floats:
    """|r₁ - r₂| of places [...,2,3]: [...] Å."""
    found: Floats = np.linalg.norm(places[..., 0, :] - places[..., 1, :], axis=-1)
    return found


def angles(places: Floats) -> Floats:
    """The angle at the second of three atoms, places [...,3,3]: [...] radians from 0 to π."""
    a, b = places[..., 0, :] - places[..., 1, :], places[..., 2, :] - places[..., 1, :]
    found: Floats = np.arctan2(np.linalg.norm(np.cross(a, b), axis=-1), (a * b).sum(-1))
    return found


def torsions(places: Floats) -> Floats:
    """The torsion of four atoms, places [...,4,3]: [...] radians from -π to π, with the sign of IUPAC."""
    first, middle, last = np.moveaxis(np.diff(places, axis=-2), -2, 0)
    one, other = np.cross(first, middle), np.cross(middle, last)
    length = np.linalg.norm(middle, axis=-1)
    found: Floats = np.arctan2(length * (first * other).sum(-1), (one * other).sum(-1))
    return found


def distance_gradients(places: Floats) -> Floats:
    """dq/dr [M,2,3]."""
    vector = places[:, 0] - places[:, 1]
    unit = vector / np.linalg.norm(vector, axis=-1, keepdims=True)
    return np.stack([unit, -unit], axis=1)


def angle_gradients(places: Floats) -> Floats:
    """dθ/dr [M,3,3]; not finite for three atoms in line.

    dθ/dr₁ = a × n / (|a|² |n|),  dθ/dr₃ = n × b / (|b|² |n|),  n = a × b,  a = r₁ - r₂,  b = r₃ - r₂
    """
    a, b = places[:, 0] - places[:, 1], places[:, 2] - places[:, 1]
    normal = np.cross(a, b)
    normal = normal / np.linalg.norm(normal, axis=-1, keepdims=True)
    first = np.cross(a, normal) / (a * a).sum(-1, keepdims=True)
    last = np.cross(normal, b) / (b * b).sum(-1, keepdims=True)
    return np.stack([first, -first - last, last], axis=1)


def torsion_gradients(places: Floats) -> Floats:
    """dφ/dr [M,4,3]; not finite for three atoms in line.

    dφ/dr₁ = -|g| a / |a|²,  dφ/dr₄ = |g| b / |b|²,  a = f × g,  b = g × h
    dφ/dr₂ = -dφ/dr₁ (1 + f·g/|g|²) + dφ/dr₄ h·g/|g|²,  f = r₂ - r₁,  g = r₃ - r₂,  h = r₄ - r₃
    """
    f, g, h = np.moveaxis(np.diff(places, axis=1), 1, 0)
    a, b = np.cross(f, g), np.cross(g, h)
    square = (g * g).sum(-1, keepdims=True)
    first = -np.sqrt(square) * a / (a * a).sum(-1, keepdims=True)
    last = np.sqrt(square) * b / (b * b).sum(-1, keepdims=True)
    before, after = (f * g).sum(-1, keepdims=True) / square, (h * g).sum(-1, keepdims=True) / square
    second = -first * (1 + before) + last * after
    return np.stack([first, second, -first - second - last, last], axis=1)
