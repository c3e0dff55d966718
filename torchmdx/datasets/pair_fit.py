"""Compares energies with forces in any frames, in no order, by a pair potential that is fitted to the forces alone.

::

    E = ½ Σ_edges φ_ab(|r|),   F_i = Σ_edges of i φ'_ab(|r|) r/|r|,   r = r_source - r_target

φ_ab of each pair of elements is a sum of Gaussians that ends smoothly at the cutoff. Its energies, which no label of an
energy has touched, correlate with those of the labels, beyond what the numbers of atoms and of bonds explain:
positively for forces, negatively for gradients. Their ratio tells whether both are in the same unit, to a factor of
about three.
Bonds matter because forces say nothing about the energy of a kind of bond, only about stretching it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from torchmdx.datasets.frames import Frames
from torchmdx.datasets.references import composition
from torchmdx.datasets.robust_fit import robust_fit
from torchmdx.datasets.store import Store
from torchmdx.neighbors.explicit import search_explicitly
from torchmdx.structures.system import Batch

Floats = NDArray[np.float64]

CUTOFF, NEAREST = 4.5, 0.6  # Å
GAUSSIANS, MOST_PAIRS = 12, 21  # 21: pairs of six elements
RIDGE = 1e-4  # relative to the mean of the diagonal
MOST_FRAMES, MOST_ATOMS = 120, 4_000
FEWEST = 16  # frames more than kinds of atoms and of bonds
BONDED = 1.25  # times the sum of covalent radii
STRIKING = 8.0  # robust deviations from which values are left out of the correlation


@dataclass(frozen=True)
class PairFit:
    """Label energies per atom, compared with those of the pair potential.

    Attributes:
        num_frames: Compared.
        correlation: Without what atoms and bonds explain.
        ratio: Of the former to the latter, by least squares.
    """

    num_frames: int
    correlation: float
    ratio: float


def pair_fit(store: Store, indices: NDArray[np.int64]) -> PairFit | None:
    """The comparison on a sample of the frames; None if too few have energy and forces, or nothing varies."""
    frames = _sample(store, indices)
    kinds = np.unique(frames.atomic_numbers)
    if len(frames) < FEWEST + len(kinds):
        return None
    energies, bonds = _pair_energies(frames, kinds)
    atoms = composition(frames.counts, frames.atomic_numbers, int(kinds.max(initial=1)))[:, kinds]
    share = np.hstack([atoms, bonds[:, bonds.any(0)]]) / frames.counts[:, None]
    if len(frames) < FEWEST + share.shape[1]:
        return None
    ours, labels = (_rest(share, values / frames.counts) for values in (energies, frames.energy))
    good = ~(_is_striking(ours) | _is_striking(labels))
    ours, labels = (_rest(share[good], values[good]) for values in (ours, labels))
    size = float(np.sqrt((ours**2).sum() * (labels**2).sum()))
    if good.sum() < FEWEST or not size > 1e-12:
        return None
    both = float((ours * labels).sum())
    return PairFit(int(good.sum()), both / size, both / float((ours**2).sum()))


def _sample(store: Store, indices: NDArray[np.int64]) -> Frames:
    """Frames of at least two atoms with energy and forces, evenly spaced."""
    chosen = indices[:: max(1, -(-len(indices) // MOST_FRAMES))]
    total = np.cumsum(store.counts[chosen])
    frames = store.gather(chosen[total <= max(MOST_ATOMS, int(total[:1].sum()))])
    there = frames.has_energy & frames.has_forces & (frames.counts > 1)
    return frames.take(np.flatnonzero(there))


def _pair_energies(frames: Frames, kinds: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Energies [F] of the pair potential that fits the forces best, and numbers of bonds [F,pairs]."""
    designs = [_design(frames.take(np.array([k])), kinds) for k in range(len(frames))]
    size = len(designs[0][0])
    normal, right = np.zeros((size, size)), np.zeros(size)
    # A few frames with enormous forces must not decide.
    scale = [1 / max(1e-3, float(np.sqrt((forces**2).mean()))) for _, _, forces, _ in designs]
    typical = float(np.median(scale))
    for (_, gradient, forces, _), own in zip(designs, scale, strict=True):
        weight = min(1.0, (own / typical) ** 2)
        normal += weight * gradient.T @ gradient
        right += weight * gradient.T @ forces
    ridge = max(RIDGE * float(np.trace(normal)) / size, 1e-12)
    coefficients = np.linalg.solve(normal + ridge * np.eye(size), right)
    energies = np.array([energy @ coefficients for energy, _, _, _ in designs])
    return energies, np.stack([bonds for _, _, _, bonds in designs])


def _design(frame: Frames, kinds: NDArray[np.int64]) -> tuple[Floats, Floats, Floats, Floats]:
    """Energy [n] and forces [3N,n] of each basis function for one frame, the labels of its forces [3N], its bonds."""
    from ase.data import covalent_radii

    batch = Batch.of(frame.system(0))
    edges = search_explicitly(batch, CUTOFF)
    vectors = edges.vectors(batch.positions, batch.cell, batch.system_index)[: int(edges.num_edges)].numpy()
    target, source = (index[: int(edges.num_edges)].numpy().astype(np.int64) for index in (edges.target, edges.source))
    kind = np.searchsorted(kinds, frame.atomic_numbers)
    first, second = np.minimum(kind[target], kind[source]), np.maximum(kind[target], kind[source])
    pair = (second * (second + 1) // 2 + first) % MOST_PAIRS
    num_pairs = min(MOST_PAIRS, len(kinds) * (len(kinds) + 1) // 2)
    distance = np.linalg.norm(vectors, axis=1)
    value, slope = _basis(distance)
    energy = np.zeros((num_pairs, GAUSSIANS))
    np.add.at(energy, pair, value / 2)
    forces = torch.zeros(frame.num_atoms * num_pairs, 3, GAUSSIANS, dtype=torch.float64)
    apart = np.where(distance > 0, distance, 1.0)  # atoms at one place have no direction
    of_edges = (vectors / apart[:, None])[:, :, None] * slope[:, None, :]
    forces.index_add_(0, torch.from_numpy(target * num_pairs + pair), torch.from_numpy(of_edges))
    shaped = forces.view(frame.num_atoms, num_pairs, 3, GAUSSIANS).permute(0, 2, 1, 3)
    gradient = shaped.reshape(3 * frame.num_atoms, num_pairs * GAUSSIANS).numpy()
    radii = covalent_radii[frame.atomic_numbers]
    is_bond = distance < BONDED * (radii[target] + radii[source])
    bonds = np.bincount(pair[is_bond], minlength=num_pairs) / 2
    return energy.reshape(-1), gradient, frame.forces.astype(np.float64).reshape(-1), bonds


def _basis(distance: Floats) -> tuple[Floats, Floats]:
    """Values and derivatives [E,n] of the basis functions."""
    centres = np.linspace(NEAREST, CUTOFF - 0.3, GAUSSIANS)
    width = centres[1] - centres[0]
    offset = (distance[:, None] - centres) / width
    bell, end = np.exp(-0.5 * offset**2), (1 - distance / CUTOFF)[:, None]
    return bell * end**2, bell * (-offset / width * end**2 - 2 * end / CUTOFF)


def _rest(share: Floats, values: Floats) -> Floats:
    """Values per atom without what a robust fit to atoms and bonds explains."""
    fit = robust_fit(share, values)
    rest: Floats = values - share @ fit.coefficients - fit.middle
    return rest


def _is_striking(values: Floats) -> NDArray[np.bool_]:
    size = np.abs(values - np.median(values))
    found: NDArray[np.bool_] = size > STRIKING * max(float(np.median(size)) / 0.6745, 1e-9)
    return found
