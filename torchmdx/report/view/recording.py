"""ThinnedSteps: the steps of a relaxation, in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchmdx.report.view.movie import MovieFrames
from torchmdx.report.view.read import of_structures
from torchmdx.report.view.thin import MOST_FRAMES, MOST_POSITIONS

if TYPE_CHECKING:
    from ase import Atoms


class ThinnedSteps:
    """Keeps structures that are added one by one: at first all, then every second, fourth, ..., and always the last.

    Args:
        most_frames, most_positions: Limits of what is kept, besides the first and the last.
    """

    def __init__(self, most_frames: int = MOST_FRAMES, most_positions: int = MOST_POSITIONS) -> None:
        self._most_frames, self._most_positions = most_frames, most_positions
        self._kept: dict[int, Atoms] = {}
        self._last: Atoms | None = None
        self._stride, self.num_steps = 1, 0

    def add(self, atoms: Atoms) -> None:
        """Adds the structure of the next step, with its energy and forces; not copied."""
        self._last = atoms
        if self.num_steps % self._stride == 0:
            self._kept[self.num_steps] = atoms
            while len(self._kept) > 2 and self._too_many(len(atoms)):
                self._stride *= 2
                self._kept = {step: kept for step, kept in self._kept.items() if step % self._stride == 0}
        self.num_steps += 1

    def frames(self, title: str) -> MovieFrames:
        """What is kept. Raises ValueError if nothing was added."""
        if self._last is None:
            raise ValueError("a recording needs at least one structure, got none")
        steps = {**self._kept, self.num_steps - 1: self._last}
        indices = np.array(list(steps), dtype=np.int64)
        return of_structures(list(steps.values()), title=title, indices=indices, num_frames=self.num_steps, axis="step")

    def _too_many(self, num_atoms: int) -> bool:
        return len(self._kept) > self._most_frames or len(self._kept) * num_atoms > self._most_positions
