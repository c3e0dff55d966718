"""Reference energies of elements by least squares."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from torchmdx.datasets.store import Store

CHUNK = 65536


SAME = 1e-3  # eV, largest difference between energies of isolated atoms of one element


def fit_references(
    store: Store, indices: NDArray[np.int64], max_z: int, known: Mapping[int, float] | None = None
) -> NDArray[np.float64]:
    """Reference energies [max_z+1] in eV that minimise Σ (E - Σ_i references[Z_i])² over frames with an energy.

    Where compositions do not determine the references (water alone), the solution of minimal norm is taken. Elements
    that do not occur get zero. known: references of elements that are not fitted. Raises ValueError if no frame has an
    energy.
    """
    fixed = np.zeros(max_z + 1)
    for number, reference in (known or {}).items():
        fixed[number] = reference
    beyond = [z for z in store.elements if z > max_z]
    if beyond:
        raise ValueError(f"max_z must be at least {max(beyond)}, the heaviest element of the data, got {max_z}")
    normal, right = np.zeros((max_z + 1, max_z + 1)), np.zeros(max_z + 1)
    used = 0
    for start in range(0, len(indices), CHUNK):
        frames = store.gather(indices[start : start + CHUNK])
        there = frames.has_energy
        counts = composition(frames.counts, frames.atomic_numbers, max_z)[there]
        energy = frames.energy[there] - counts @ fixed
        counts[:, list(known or {})] = 0
        normal += counts.T @ counts
        right += counts.T @ energy
        used += int(there.sum())
    if not used:
        raise ValueError(f"reference energies need frames with an energy, got none among {len(indices)}")
    # The normal equations square the condition number: smaller singular values are compositions that do not vary.
    fitted: NDArray[np.float64] = np.linalg.pinv(normal, rcond=1e-10, hermitian=True) @ right
    return fitted + fixed


def isolated_energies(store: Store) -> dict[int, float]:
    """Energies, eV, of the neutral isolated atoms of a store, by atomic number.

    Raises ValueError if two atoms of one element have different energies.
    """
    indices = np.flatnonzero(store.isolated)
    frames = store.gather(indices)
    found: dict[int, tuple[float, int]] = {}
    neutral = (frames.charge == 0) & frames.has_energy
    for index, number, energy in zip(
        indices[neutral].tolist(),
        frames.atomic_numbers[neutral].tolist(),
        frames.energy[neutral].tolist(),
        strict=True,
    ):
        before, other = found.setdefault(number, (energy, index))
        if abs(before - energy) > SAME:
            (one, first), (two, second) = store.origin(other), store.origin(index)
            raise ValueError(
                f"isolated atoms of element {number} must have one energy, got {before:.6f} eV (frame {first} of "
                f"{one!r}) and {energy:.6f} eV (frame {second} of {two!r})"
            )
    return {number: energy for number, (energy, _) in sorted(found.items())}


def composition(counts: NDArray[np.int64], atomic_numbers: NDArray[np.int64], max_z: int) -> NDArray[np.float64]:
    """Number of atoms of each element in each frame [F,max_z+1]."""
    frame = np.repeat(np.arange(len(counts)), counts)
    flat = np.bincount(frame * (max_z + 1) + atomic_numbers, minlength=len(counts) * (max_z + 1))
    return flat.reshape(len(counts), max_z + 1).astype(np.float64)
