"""Which frames to label: uncertain ones that differ from each other and from those that are labelled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchmdx.evaluation.properties.descriptors import descriptors
from torchmdx.models.ensemble import Ensemble, members_of
from torchmdx.models.potential import Potential
from torchmdx.structures.system import System

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

NORMAL = 1.349  # interquartile range of a normal distribution, in standard deviations
UNCERTAIN, RANDOM = "uncertain", "random"


@dataclass(frozen=True)
class Chosen:
    """A frame that is chosen: its place among the candidates, why, and its distance to all chosen or known before."""

    place: int
    why: str
    distance: float


def describe(potential: Potential | Ensemble, systems: Sequence[System]) -> list[tuple[Integers, Floats]]:
    """Elements [N] and descriptors [N,C] of the atoms of structures, by the first member of an ensemble."""
    first = members_of(potential)[0]
    return [
        (one.atomic_numbers.cpu().numpy(), descriptors(first, one).double().cpu().numpy().astype(np.float64))
        for one in systems
    ]


def vectors(atoms: Sequence[tuple[Integers, Floats]], pool: Sequence[tuple[Integers, Floats]]) -> Floats:
    """Descriptors of structures [F,D], whose distances do not depend on the number of channels and atoms.

    ::

        z = (x - m_e) / s_e            of an atom of element e, with median m_e and deviation s_e of it in `pool`
        v_e = Σ z / sqrt(n_e C E)      over the n_e atoms of e in the structure, for C channels and E elements
        v = (v_e for all e; sqrt(n_e / E) for all e)

    s_e is the interquartile range of each channel, as of a normal distribution, so that a few broken frames do not make
    all others alike. Independent frames at one temperature are of the order of 1 apart, frames that differ in
    composition further.
    """
    elements = np.unique(np.concatenate([numbers for numbers, _ in pool]))
    every = np.concatenate([values for _, values in pool])
    kinds = np.concatenate([numbers for numbers, _ in pool])
    quartiles = {e: np.quantile(every[kinds == e], (0.25, 0.5, 0.75), axis=0) for e in elements.tolist()}
    means = {e: middle for e, (_, middle, _) in quartiles.items()}
    scales = {e: (high - low) / NORMAL for e, (low, _, high) in quartiles.items()}
    channels, count = every.shape[1], len(elements)
    found = np.zeros((len(atoms), count, channels + 1))
    for row, (numbers, values) in enumerate(atoms):
        for place, e in enumerate(elements.tolist()):
            own = values[numbers == e]
            if not len(own):
                continue
            # A channel that does not vary says nothing; rounding would make it the loudest one.
            safe = np.where(scales[e] > 1e-9 * np.abs(means[e]).max(initial=1e-300), scales[e], np.inf)
            found[row, place, :channels] = ((own - means[e]) / safe).sum(0) / np.sqrt(len(own) * channels * count)
            found[row, place, channels] = np.sqrt(len(own) / count)
    return found.reshape(len(atoms), -1)


def choose(
    candidates: Floats,
    uncertainty: Floats,
    known: Floats,
    *,
    count: int,
    num_random: int = 0,
    order: Sequence[int] = (),
    diversity: float = 1.0,
    duplicates: float = 0.0,
    least: float = 0.0,
) -> tuple[list[Chosen], Integers]:
    """Frames to label, in the order of choice, and the places of near duplicates of labelled frames.

    First `num_random` of `order`, then one after another that with the largest u d^p: its uncertainty u, the distance d
    of its vector to the nearest known or chosen frame, and p = `diversity`. Frames with d <= `duplicates` are never
    taken, and by their uncertainty only those with u >= `least`. Without known frames the first one is that with the
    largest u.

    Args:
        candidates: [F,D], known [K,D]: vectors of frames that may be chosen, and that are labelled.
        uncertainty: [F].
        order: Places of frames in a random order, which are taken whatever their uncertainty is.
    """
    nearest = np.full(len(candidates), np.inf)
    for row in known:
        nearest = np.minimum(nearest, _distances(candidates, row))
    double = np.flatnonzero(nearest <= duplicates)
    chosen: list[Chosen] = []

    def take(place: int, why: str) -> None:
        nonlocal nearest
        chosen.append(Chosen(place, why, float(nearest[place])))
        nearest = np.minimum(nearest, _distances(candidates, candidates[place]))
        nearest[place] = -1.0  # itself, even if duplicates are allowed

    for place in order:
        if len(chosen) < min(num_random, count) and nearest[place] > duplicates:
            take(place, RANDOM)
    while len(chosen) < count:
        free = (nearest > duplicates) & (uncertainty >= least)
        if not free.any():
            break
        distance = np.where(np.isfinite(nearest), np.maximum(nearest, 0.0), 1.0) ** diversity
        take(int(np.argmax(np.where(free, uncertainty * distance, -np.inf))), UNCERTAIN)
    return chosen, double.astype(np.int64)


def _distances(rows: Floats, other: Floats) -> Floats:
    found: Floats = np.linalg.norm(rows - other, axis=1)
    return found
