"""Reference energies of elements by least squares."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchmdx.datasets.store import Store

CHUNK = 65536


def fit_references(store: Store, indices: NDArray[np.int64], max_z: int) -> NDArray[np.float64]:
    """Reference energies [max_z+1] in eV that minimise Σ (E - Σ_i references[Z_i])² over frames with an energy.

    Where compositions do not determine the references (water alone), the solution of minimal norm is taken. Elements
    that do not occur get zero. Raises ValueError if no frame has an energy.
    """
    beyond = [z for z in store.elements if z > max_z]
    if beyond:
        raise ValueError(f"max_z must be at least {max(beyond)}, the heaviest element of the data, got {max_z}")
    normal, right = np.zeros((max_z + 1, max_z + 1)), np.zeros(max_z + 1)
    used = 0
    for start in range(0, len(indices), CHUNK):
        frames = store.gather(indices[start : start + CHUNK])
        there = frames.has_energy
        counts = composition(frames.counts, frames.atomic_numbers, max_z)[there]
        normal += counts.T @ counts
        right += counts.T @ frames.energy[there]
        used += int(there.sum())
    if not used:
        raise ValueError(f"reference energies need frames with an energy, got none among {len(indices)}")
    # The normal equations square the condition number: smaller singular values are compositions that do not vary.
    return np.linalg.pinv(normal, rcond=1e-10, hermitian=True) @ right


def composition(counts: NDArray[np.int64], atomic_numbers: NDArray[np.int64], max_z: int) -> NDArray[np.float64]:
    """Number of atoms of each element in each frame [F,max_z+1]."""
    frame = np.repeat(np.arange(len(counts)), counts)
    flat = np.bincount(frame * (max_z + 1) + atomic_numbers, minlength=len(counts) * (max_z + 1))
    return flat.reshape(len(counts), max_z + 1).astype(np.float64)
