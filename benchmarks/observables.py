"""Averages of trajectories and their errors: bonds, torsions, pairs, diffusion, and distances between distributions.

Arrays of frames have shape [F,R,N,3], positions in Å, of R replicas of one structure; replicas are independent, and all
errors are from their scatter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SHUFFLES = 500  # of a permutation test


def mean_and_error(values: Floats) -> tuple[float, float]:
    """Mean over replicas [R] and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5)


def ratio_and_error(numerators: Floats, denominators: Floats) -> tuple[float, float]:
    """Ratio of the means over replicas [R], and its standard error by the jackknife."""
    count = len(numerators)
    left_out = (numerators.sum() - numerators) / (denominators.sum() - denominators)
    spread = (count - 1) / count * ((left_out - left_out.mean()) ** 2).sum()
    return float(numerators.sum() / denominators.sum()), float(spread**0.5)


def distance_of(first: Floats, second: Floats) -> float:
    """Total variation between the distributions of two sets of counts [R,B]: from 0, equal, to 1."""
    p, q = first.sum(0) / first.sum(), second.sum(0) / second.sum()
    return float(0.5 * np.abs(p - q).sum())


def distance(first: Floats, second: Floats, seed: int = 0) -> dict[str, float]:
    """Total variation between two sets of counts [R,B] and [R',B], and what it is between equal distributions.

    `expected` is the mean of replicas that are distributed at random over two sets, and `p` the share of these whose
    distance is larger.
    """
    first, second = (counts / counts.sum(1, keepdims=True) for counts in (first, second))
    found, random = distance_of(first, second), np.random.default_rng(seed)
    pooled = np.concatenate([first, second])
    null = []
    for _ in range(SHUFFLES):
        order = random.permutation(len(pooled))
        null.append(distance_of(pooled[order[: len(first)]], pooled[order[len(first) :]]))
    larger = float((np.array(null) >= found - 1e-12).mean())
    return {"distance": found, "expected": float(np.mean(null)), "p": larger}


def histogram(values: Any, low: float, high: float, bins: int) -> Floats:
    """Counts [R,bins] of values [F,R,...] of each replica; values outside count in the first and the last bin."""
    values = np.asarray(values)
    place = np.clip(((values - low) / (high - low) * bins).astype(int), 0, bins - 1)
    flat = np.moveaxis(place, 1, 0).reshape(values.shape[1], -1)
    return np.stack([np.bincount(row, minlength=bins) for row in flat]).astype(np.float64)


def correlation_time(series: Floats, spacing: float, longest: float = np.inf) -> float:
    """Integrated autocorrelation time of values [K,R] at this spacing, up to the first lag without correlation.

    A run of length T has T / (2 times this) independent values. Fluctuations are around the mean of all replicas.
    longest: most lags, in units of the result; 5 leaves out noise, and what is slower than the rest.
    """
    around = series - series.mean()
    whole = np.fft.rfft(around, 2 * len(around), axis=0)
    products = np.fft.irfft(np.abs(whole) ** 2, axis=0)[: len(around)].mean(1) / np.arange(len(around), 0, -1)
    last = np.flatnonzero(products <= 0)
    times = np.cumsum(products[: int(last[0]) if len(last) else len(products)]) / products[0] - 0.5
    beyond = np.flatnonzero(np.arange(len(times)) >= longest * times)
    return float(spacing * times[beyond[0] if len(beyond) else -1])


def time_and_error(series: Floats, spacing: float, longest: float = np.inf) -> tuple[float, float]:
    """Correlation time of values [K,R], and its standard error by the jackknife over replicas."""
    count = series.shape[1]
    left_out = [correlation_time(np.delete(series, each, 1), spacing, longest) for each in range(count)]
    return correlation_time(series, spacing, longest), float((count - 1) ** 0.5 * np.std(left_out))


def bonds_of(numbers: Any, positions: Any) -> dict[str, NDArray[np.int64]]:
    """Pairs of bonded atoms [B,2] by name: of a hydrogen by its heavy atom, "O-H", the others "heavy".

    Hydrogens are bonded within 1.3 Å, others within 1.7 Å, in positions [N,3] of whole molecules.
    """
    numbers, positions = np.asarray(numbers), np.asarray(positions)
    symbols = {6: "C-H", 7: "N-H", 8: "O-H", 16: "S-H"}
    lengths = np.linalg.norm(positions[:, None] - positions, axis=-1)
    hydrogens = (numbers == 1).astype(int)[:, None] + (numbers == 1)
    bonded = np.triu((lengths < np.where(hydrogens == 1, 1.3, 1.7)) & (hydrogens < 2), 1)
    found: dict[str, list[tuple[int, int]]] = {}
    for first, second in np.argwhere(bonded).tolist():
        heavy = int(max(numbers[first], numbers[second]))
        name = symbols.get(heavy, "X-H") if 1 in (numbers[first], numbers[second]) else "heavy"
        found.setdefault(name, []).append((first, second))
    return {name: np.array(pairs) for name, pairs in found.items()}


def lengths(frames: Floats, pairs: NDArray[np.int64]) -> Floats:
    """Lengths [F,R,B] of bonds of whole molecules."""
    found: Floats = np.linalg.norm(frames[..., pairs[:, 0], :] - frames[..., pairs[:, 1], :], axis=-1)
    return found


def torsion(frames: Floats, atoms: tuple[int, int, int, int]) -> Floats:
    """Torsion angles [F,R] in degrees, -180 to 180, IUPAC sign."""
    a, b, c, d = (frames[..., atom, :] for atom in atoms)
    first, axis, last = a - b, c - b, d - c
    one, other = np.cross(-first, axis), np.cross(axis, last)
    length = np.linalg.norm(axis, axis=-1)
    sine = (np.cross(one, other) * axis).sum(-1) / length
    found: Floats = np.degrees(np.arctan2(sine, (one * other).sum(-1)))
    return found


def pair_counts(frames: Floats, edge: float, bins: int, longest: float) -> Floats:
    """Counts [R,bins] of distances up to `longest` Å between all atoms of frames, in cubic cells of this edge, Å."""
    number = frames.shape[-2]
    first, second = np.triu_indices(number, 1)
    found = np.zeros((frames.shape[1], bins))
    for frame in frames:
        for replica, positions in enumerate(frame):
            vectors = positions[first] - positions[second]
            vectors -= edge * np.round(vectors / edge)
            found[replica] += np.histogram(np.linalg.norm(vectors, axis=-1), bins, (0, longest))[0]
    return found


def radial_distribution(counts: Floats, num_atoms: int, num_frames: int, edge: float, longest: float) -> Floats:
    """g(r) [R,bins] from counts of pairs [R,bins] in this number of frames."""
    edges = np.linspace(0, longest, counts.shape[1] + 1)
    shells = 4 / 3 * np.pi * np.diff(edges**3)
    expected = num_frames * num_atoms * (num_atoms - 1) / 2 * shells / edge**3
    found: Floats = counts / expected
    return found


def diffusion(frames: Floats, spacing: float, first: float, last: float) -> Floats:
    """Diffusion coefficients [R] in 10⁻⁵ cm²/s: the slope of squared displacements of unwrapped positions over 6.

    spacing: ps between frames; first, last: ps, the lags of the slope. NaN where the frames are too few.
    """
    lags = np.arange(max(1, round(first / spacing)), round(last / spacing) + 1)
    if len(lags) < 2 or len(frames) < 2 * lags[-1]:
        return np.full(frames.shape[1], np.nan)
    squares = np.stack([((frames[lag:] - frames[:-lag]) ** 2).sum(-1).mean((0, 2)) for lag in lags])
    slopes: Floats = np.polyfit(lags * spacing, squares, 1)[0]
    return slopes / 6 * 10  # Å²/ps = 10⁻⁴ cm²/s
