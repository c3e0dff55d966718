"""Averages over the frames of a simulation: pair distributions, diffusion, density profiles, vibrational spectra."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from torchmdx.report.view.curves import DENSITY
from torchmdx.report.view.movie import Line, MovieFrames, Observable

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

LEAST_FRAMES = 20
MOST_ELEMENTS = 3  # of which pairs are shown, the most frequent ones
MOST_RADIUS, BIN = 10.0, 0.05  # Å
MOST_PAIRS = 4_000_000  # in all frames of a pair distribution
SLICES = 100  # of a density profile
FIT = (0.2, 0.6)  # the part of the longest lag that the diffusion coefficient is fitted to
MOST_LAG, MOST_LAGS = 0.5, 60  # of the trajectory; points
CM2_PER_S = 1e-4  # of 1 Å²/ps
WAVENUMBER = 33.35641  # 1/cm in 1/ps
LONGEST_STEP = 0.004  # ps, between frames of a spectrum: its limit of 4170/cm is above bonds to hydrogen
MOST_WAVENUMBER = 4500.0  # 1/cm


def observables(frames: MovieFrames) -> list[Observable]:
    """Those that frames of one composition at equal times, in ps, have; none of fewer than LEAST_FRAMES frames."""
    count = len(frames.positions)
    if not frames.timed or not frames.uniform or count < LEAST_FRAMES:
        return []
    steps = np.diff(frames.x)
    if count > LEAST_FRAMES and not np.isclose(steps[-1], steps[0], rtol=1e-3):  # of a page that shows every n-th frame
        frames, steps = frames.take(slice(-1)), steps[:-1]
    even = steps[0] > 0 and np.allclose(steps, steps[0], rtol=1e-3)
    numbers, pbc = frames.numbers[0], frames.pbc[0]
    cells = None if frames.cells[0] is None else np.stack([cell for cell in frames.cells if cell is not None])
    positions = np.stack(frames.positions)
    found = []
    if cells is not None and pbc.all():
        found.append(pair_distribution(numbers, positions, cells))
    if cells is not None and pbc.any():
        found.append(density_profile(numbers, positions, cells, pbc))
    if even:
        whole = unwrapped(positions, cells, pbc)
        if cells is not None and pbc.any():
            found.append(diffusion(numbers, whole, float(steps[0]), cells[0][pbc]))
        if steps[0] <= LONGEST_STEP * (1 + 1e-3):
            velocities = np.diff(whole, axis=0) if frames.velocities is None else np.stack(frames.velocities)
            found.append(spectrum(numbers, velocities, float(steps[0])))
    return found


def pair_distribution(numbers: Integers, positions: Floats, cells: Floats) -> Observable:
    """g(r) of pairs of elements, up to half the distance between faces of the smallest cell."""
    from vesin import NeighborList

    heights = 1 / np.linalg.norm(np.linalg.inv(cells), axis=1)
    reach = min(MOST_RADIUS, float(heights.min()) / 2)
    edges = np.linspace(0, reach, max(2, round(reach / BIN)) + 1)
    volume = float(np.abs(np.linalg.det(cells)).mean())
    pairs = len(numbers) ** 2 * 4 / 3 * np.pi * reach**3 / volume
    kept = np.unique(np.linspace(0, len(positions) - 1, max(1, int(MOST_PAIRS / max(pairs, 1)))).round().astype(int))
    search = NeighborList(cutoff=reach, full_list=True)
    elements = [number for number, _ in Counter(numbers.tolist()).most_common(MOST_ELEMENTS)]
    sums = {pair: np.zeros(len(edges) - 1) for pair in itertools.combinations_with_replacement(elements, 2)}
    for k in kept:
        first, second, distances = search.compute(
            points=np.ascontiguousarray(positions[k]), box=cells[k], periodic=True, quantities="ijd"
        )
        density = 1 / abs(float(np.linalg.det(cells[k])))
        for (a, b), total in sums.items():
            of_pair = distances[(numbers[first] == a) & (numbers[second] == b)]
            total += np.histogram(of_pair, edges)[0] / ((numbers == a).sum() * (numbers == b).sum() * density)
    shells = 4 / 3 * np.pi * np.diff(edges**3)
    middles = (edges[1:] + edges[:-1]) / 2
    lines = [
        Line(f"{_symbol(a)}-{_symbol(b)}", middles, total / (shells * len(kept))) for (a, b), total in sums.items()
    ]
    return Observable("pair distribution g(r)", "r / Å", lines)


def density_profile(numbers: Integers, positions: Floats, cells: Floats, pbc: NDArray[np.bool_]) -> Observable:
    """Mass density along the direction that is not periodic, or the longest."""
    from ase.data import atomic_masses

    heights = (1 / np.linalg.norm(np.linalg.inv(cells), axis=1)).mean(0)
    axis = int(np.argmax(np.where(pbc, 0, 1e6) + heights))
    fractional = np.einsum("fni,fij->fnj", positions, np.linalg.inv(cells))[:, :, axis]
    low, high = 0.0, 1.0
    places = fractional - np.floor(fractional) if pbc[axis] else fractional
    if not pbc[axis]:  # atoms may be outside of the cell
        low, high = min(low, float(places.min())), max(high, float(places.max()))
    masses = np.broadcast_to(np.asarray(atomic_masses)[numbers], places.shape)
    total = np.histogram(places, SLICES, (low, high), weights=masses)[0] / len(positions)
    volume = float(np.abs(np.linalg.det(cells)).mean()) * (high - low) / SLICES
    middles = (low + (np.arange(SLICES) + 0.5) / SLICES * (high - low)) * heights[axis]
    lines = [Line("density", middles, total / volume * DENSITY)]
    return Observable("density profile / g/cm³", f"height along {'abc'[axis]} / Å", lines)


def unwrapped(positions: Floats, cells: Floats | None, pbc: NDArray[np.bool_]) -> Floats:
    """Positions [F,N,3] of which none jumps by a lattice vector from frame to frame, in the mean of the cells [F,3,3].

    Cells that change would move atoms at rest, the more the farther they are from the origin.
    """
    if cells is None:
        return positions
    fractional = np.einsum("fni,fij->fnj", positions, np.linalg.inv(cells))
    steps = np.diff(fractional, axis=0)
    steps -= np.where(pbc, np.round(steps), 0.0)
    whole = np.concatenate([fractional[:1], fractional[:1] + np.cumsum(steps, axis=0)])
    return np.asarray(whole @ cells.mean(0))


def diffusion(numbers: Integers, positions: Floats, step: float, vectors: Floats) -> Observable:
    """Mean square displacements of elements, over all time origins, without the motion of the centre of mass.

    Only displacements in the space of the periodic lattice vectors [D,3] count, D dimensions: those in the plane of a
    slab. The slope between FIT of the longest lag gives diffusion coefficients.
    """
    from ase.data import atomic_masses

    masses = np.asarray(atomic_masses)[numbers]
    if len(numbers) > 1:
        positions = positions - np.average(positions, axis=1, weights=masses)[:, None]
    positions = positions @ np.linalg.qr(vectors.T)[0]
    longest = max(1, int(MOST_LAG * len(positions)))
    lags = np.unique(np.linspace(1, longest, min(longest, MOST_LAGS)).round().astype(int))
    times = lags * step
    lines, coefficients = [], []
    for number, _ in Counter(numbers.tolist()).most_common(MOST_ELEMENTS):
        some = positions[:, numbers == number]
        values = np.array(
            [float(np.square(some[lag:] - some[:-lag]).sum(-1).mean()) for lag in lags.tolist()], dtype=np.float64
        )
        fitted = (times >= FIT[0] * times[-1]) & (times <= FIT[1] * times[-1])
        slope = np.polyfit(times[fitted], values[fitted], 1)[0] if fitted.sum() > 1 else np.nan
        coefficients.append(f"{_symbol(number)} {max(slope, 0) / (2 * len(vectors)) * CM2_PER_S:.2g}")
        lines.append(Line(_symbol(number), times, values))
    where = {1: " along the periodic direction", 2: " in the periodic plane"}.get(len(vectors), "")
    title = f"mean square displacement{where} / Å²; diffusion {', '.join(coefficients)} cm²/s"
    return Observable(title, "lag / ps", lines)


def spectrum(numbers: Integers, velocities: Floats, step: float) -> Observable:
    """The power spectrum of velocities, weighted by mass: the transform of their autocorrelation."""
    from ase.data import atomic_masses

    masses = np.asarray(atomic_masses)[numbers]
    window = np.hanning(len(velocities))[:, None, None]
    power = (np.abs(np.fft.rfft(velocities * window, axis=0)) ** 2).sum(-1) @ masses
    wavenumbers = np.asarray(np.fft.rfftfreq(len(velocities), step) * WAVENUMBER, dtype=np.float64)
    shown = slice(1, int(np.searchsorted(wavenumbers, MOST_WAVENUMBER)))
    line = Line("spectrum", wavenumbers[shown], power[shown] / power[shown].max(initial=1e-300))
    return Observable("spectrum of velocities", "wavenumber / cm⁻¹", [line])


def _symbol(number: int) -> str:
    from ase.data import chemical_symbols

    return str(chemical_symbols[number])
