"""Frames kept with their labels and predictions, for the interactive page of a report: a sample, and the worst."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torchmdx.report.predictions import Predictions

Floats = NDArray[np.float64]

MOST_FRAMES, MOST_WORST = 600, 40  # of the sample; of the largest errors of energy and of forces
MOST_ATOMS = 30_000  # of the sample together; a tenth of it of each list of the worst
LARGEST = 6000  # atoms in a frame; larger ones are left out


@dataclass(frozen=True, eq=False)
class KeptFrame:
    """A frame: index in its store, structure [n] and [n,3] Å, cell [3,3] Å, labels and predictions in eV and eV/Å."""

    index: int
    numbers: NDArray[np.int64]
    positions: Floats
    cell: Floats
    pbc: NDArray[np.bool_]
    energy: tuple[float, float]
    forces: tuple[Floats, Floats]

    @property
    def energy_error(self) -> float:
        """eV/atom, NaN without a label."""
        return (self.energy[1] - self.energy[0]) / len(self.numbers)

    @property
    def force_error(self) -> float:
        """The largest of a component, eV/Å, NaN without labels."""
        errors = np.abs(self.forces[1] - self.forces[0])
        return float(np.nanmax(errors)) if np.isfinite(errors).any() else float("nan")


class KeptFrames:
    """Keeps frames of a set of any size in bounded memory. references: energies of the elements, eV."""

    def __init__(
        self, references: Floats, *, most: int = MOST_FRAMES, most_atoms: int = MOST_ATOMS, worst: int = MOST_WORST
    ) -> None:
        self.references, self.num_seen = references, 0
        self._random = np.random.default_rng(0)
        self._sample = _Smallest(most, most_atoms)
        self._energy, self._forces = (_Smallest(worst, most_atoms // 10) for _ in range(2))

    def add(self, part: Predictions) -> None:
        """Adds the frames of a batch."""
        frames = part.frames
        for place, key in enumerate(self._random.random(len(frames)).tolist()):
            self.num_seen += 1
            if not 0 < frames.counts[place] <= LARGEST:
                continue
            atoms = slice(int(frames.offsets[place]), int(frames.offsets[place] + frames.counts[place]))
            errors = np.abs(part.forces[atoms] - frames.forces[atoms])
            force = float(np.nanmax(errors)) if np.isfinite(errors).any() else np.nan
            energy = float(abs(part.energy[place] - frames.energy[place]) / frames.counts[place])

            def kept(place: int = place, atoms: slice = atoms) -> KeptFrame:
                return _kept(part, place, atoms)

            size = int(frames.counts[place])
            self._sample.add(key, size, kept)
            for ranked, error in ((self._energy, energy), (self._forces, force)):
                if np.isfinite(error):
                    ranked.add(-error, size, kept)

    def frames(self) -> list[KeptFrame]:
        """All kept frames, each once, in the order of their store."""
        found = {frame.index: frame for ranked in (self._sample, self._energy, self._forces) for frame in ranked.frames}
        return [found[index] for index in sorted(found)]


class _Smallest:
    """The frames with the smallest keys, up to a number of frames and of atoms."""

    def __init__(self, most: int, most_atoms: int) -> None:
        self._most, self._most_atoms, self._atoms = most, most_atoms, 0
        self._heap: list[tuple[float, int, KeptFrame]] = []  # the largest key first
        self._order = itertools.count()

    @property
    def frames(self) -> list[KeptFrame]:
        return [frame for _, _, frame in self._heap]

    def add(self, key: float, size: int, frame: Callable[[], KeptFrame]) -> None:
        full = len(self._heap) >= self._most or self._atoms + size > self._most_atoms
        if self._heap and full and -key <= self._heap[0][0]:
            return
        heapq.heappush(self._heap, (-key, next(self._order), frame()))
        self._atoms += size
        while len(self._heap) > 1 and (len(self._heap) > self._most or self._atoms > self._most_atoms):
            _, _, left = heapq.heappop(self._heap)
            self._atoms -= len(left.numbers)


def _kept(part: Predictions, place: int, atoms: slice) -> KeptFrame:
    """A copy of one frame of a batch."""
    frames = part.frames
    return KeptFrame(
        index=int(part.indices[place]),
        numbers=frames.atomic_numbers[atoms].astype(np.int64),
        positions=frames.positions[atoms].astype(np.float64),
        cell=np.array(frames.cell[place], dtype=np.float64),
        pbc=np.array(frames.pbc[place], dtype=bool),
        energy=(float(frames.energy[place]), float(part.energy[place])),
        forces=(frames.forces[atoms].astype(np.float64), part.forces[atoms].astype(np.float64)),
    )
