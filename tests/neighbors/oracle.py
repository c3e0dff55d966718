"""Neighbours by loops, written without the package: slow, plain, and what every search is held to."""

import itertools
import math

import numpy as np


def neighbours(positions, cell, pbc, cutoff):
    """{(target, source, shift): distance} of one system, float64: |r_source - r_target + shift @ cell| < cutoff."""
    positions, cell = np.asarray(positions, dtype=np.float64), np.asarray(cell, dtype=np.float64)
    periodic = [k for k in range(3) if pbc[k]]
    dual = np.linalg.pinv(cell[periodic]) if periodic else np.zeros((3, 0))
    rows = np.where(np.asarray(pbc)[:, None], cell, 0.0).tolist()
    duals, reaches = dual.T.tolist(), (cutoff * np.linalg.norm(dual, axis=0)).tolist()
    atoms, found = positions.tolist(), {}
    for i, j in itertools.product(range(len(atoms)), repeat=2):
        between = [b - a for a, b in zip(atoms[i], atoms[j], strict=True)]
        ranges = [range(1)] * 3
        for k, g, reach in zip(periodic, duals, reaches, strict=True):
            # The coordinate of the vector along k is at most |vector| |dual|.
            at = between[0] * g[0] + between[1] * g[1] + between[2] * g[2]
            ranges[k] = range(math.floor(-reach - at), math.ceil(reach - at) + 1)
        for a, b, c in itertools.product(*ranges):
            x, y, z = (between[k] + a * rows[0][k] + b * rows[1][k] + c * rows[2][k] for k in range(3))
            distance = math.sqrt(x * x + y * y + z * z)
            if distance < cutoff and not (i == j and a == b == c == 0):
                found[i, j, (a, b, c)] = distance
    return found


def of_batch(systems, cutoff):
    """`neighbours` of (positions, cell, pbc) one after the other, atoms numbered on."""
    found, first = {}, 0
    for positions, cell, pbc in systems:
        for (i, j, shift), distance in neighbours(positions, cell, pbc, cutoff).items():
            found[first + i, first + j, shift] = distance
        first += len(positions)
    return found
