"""Reference energies of elements by least squares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from torchmdx.datasets.robust_fit import SINGULAR, RobustFit, robust_fit
from torchmdx.datasets.store import Store
from torchmdx.structures.system_fields import LAST_ELEMENT

CHUNK = 65536
MOST_SAMPLED = 20_000  # frames that tell which others are outliers
SAME = 1e-3  # eV, largest difference between energies of isolated atoms of one element


def fit_references(
    store: Store,
    indices: NDArray[np.int64],
    max_z: int,
    known: Mapping[int, float] | None = None,
    base: Mapping[int, float] | None = None,
) -> NDArray[np.float64]:
    """Reference energies [max_z+1] in eV that minimise Σ (E - Σ_i references[Z_i])² over frames with an energy.

    Frames whose energy per atom is an outlier, such as those of failed calculations, are left out: more than 8 robust
    deviations from the fit with the least absolute deviations. Where compositions do not determine the references
    (water alone), the solution nearest to `base`, or else to zero, is taken. Elements that do not occur get zero.

    Args:
        known: References of elements that are not fitted.

    Raises:
        ValueError: If no frame has an energy.
    """
    fixed = _column(known, max_z) + _column(base, max_z)
    beyond = [z for z in store.elements if z > max_z]
    if beyond:
        raise ValueError(f"max_z must be at least {max(beyond)}, the heaviest element of the data, got {max_z}")
    robust = _robust(store, indices, fixed, known)
    every, good = _NormalEquations(max_z + 1), _NormalEquations(max_z + 1)
    start = robust.coefficients
    for counts, energy, sizes in _compositions(store, indices, fixed, known):
        outlier = robust.is_outlier(counts / sizes[:, None], energy / sizes)
        every.add(counts, energy)
        good.add(counts[~outlier], (energy - counts @ start)[~outlier])
    if not every.count:
        raise ValueError(f"reference energies need frames with an energy, got none among {len(indices)}")
    if good.count == every.count:
        return every.solved() + fixed
    return start + good.solved() + fixed


def robust_references(store: Store, indices: NDArray[np.int64]) -> RobustFit:
    """The fit, to energies per atom, by which `fit_references` judges outliers; elements of atomic number up to 118."""
    return _robust(store, indices, np.zeros(LAST_ELEMENT + 1), None)


def _robust(
    store: Store, indices: NDArray[np.int64], fixed: NDArray[np.float64], known: Mapping[int, float] | None
) -> RobustFit:
    sample = indices[:: max(1, -(-len(indices) // MOST_SAMPLED))]
    parts = list(_compositions(store, sample, fixed, known))
    size = len(fixed)
    counts = np.concatenate([np.zeros((0, size)), *(counts for counts, _, _ in parts)])
    energy = np.concatenate([np.zeros(0), *(energy for _, energy, _ in parts)])
    sizes = np.concatenate([np.zeros(0), *(sizes for _, _, sizes in parts)])
    there = np.flatnonzero(counts.any(0))
    found = robust_fit(counts[:, there] / sizes[:, None], energy / sizes)
    coefficients = np.zeros(size)
    coefficients[there] = found.coefficients
    return replace(found, coefficients=coefficients)


def _compositions(
    store: Store, indices: NDArray[np.int64], fixed: NDArray[np.float64], known: Mapping[int, float] | None
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]]:
    """Atoms of each fitted element [F,max_z+1], energy less fixed references [F], and atoms [F] of labelled frames."""
    for start in range(0, len(indices), CHUNK):
        frames = store.gather(indices[start : start + CHUNK])
        there = frames.has_energy
        counts = composition(frames.counts, frames.atomic_numbers, len(fixed) - 1)[there]
        energy = frames.energy[there] - counts @ fixed
        counts[:, list(known or {})] = 0
        yield counts, energy, frames.counts[there]


class _NormalEquations:
    """Normal equations of a least-squares fit, accumulated in parts."""

    def __init__(self, size: int) -> None:
        self.normal, self.right, self.count = np.zeros((size, size)), np.zeros(size), 0

    def add(self, rows: NDArray[np.float64], values: NDArray[np.float64]) -> None:
        self.normal += rows.T @ rows
        self.right += rows.T @ values
        self.count += len(values)

    def solved(self) -> NDArray[np.float64]:
        """The solution of minimal norm; smaller singular values are compositions that do not vary."""
        found: NDArray[np.float64] = np.linalg.pinv(self.normal, rcond=SINGULAR, hermitian=True) @ self.right
        return found


def _column(energies: Mapping[int, float] | None, max_z: int) -> NDArray[np.float64]:
    column = np.zeros(max_z + 1)
    for number, energy in (energies or {}).items():
        column[number] = energy
    return column


def isolated_energies(store: Store, among: NDArray[np.bool_] | None = None) -> dict[int, float]:
    """Energies, eV, of the neutral isolated atoms of a store, by atomic number. among [F]: frames that count.

    Raises:
        ValueError: If two atoms of one element have different energies.
    """
    indices = np.flatnonzero(store.isolated if among is None else store.isolated & among)
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
