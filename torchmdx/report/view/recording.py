"""ThinnedSteps: the steps of a relaxation, in bounded memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from torchmdx.report.view.curves import PRESSURE, spans
from torchmdx.report.view.movie import Line, MovieFrames, Panel
from torchmdx.report.view.read import of_structures
from torchmdx.report.view.thin import MOST_FRAMES, MOST_POSITIONS

if TYPE_CHECKING:
    from ase import Atoms


class ThinnedSteps:
    """Keeps structures that are added one by one: at first all, then every second, fourth, ..., and always the last.

    Args:
        most_frames, most_positions: Limits of what is kept, besides the first and the last.
        pressure: The external one of a moving cell, GPa; None for a cell that does not move.
    """

    def __init__(
        self, most_frames: int = MOST_FRAMES, most_positions: int = MOST_POSITIONS, *, pressure: float | None = None
    ) -> None:
        self._most_frames, self._most_positions = most_frames, most_positions
        self._kept: dict[int, Atoms] = {}
        self._last: Atoms | None = None
        self._stride, self.num_steps, self._pressure = 1, 0, pressure
        self._cell_forces: dict[int, float] = {}

    def add(self, atoms: Atoms, cell_force: float | None = None) -> None:
        """Adds the structure of the next step, with its energy and forces; not copied.

        Args:
            cell_force: The largest force on a moving cell per atom, eV.
        """
        self._last = atoms
        if cell_force is not None:
            self._cell_forces[self.num_steps] = cell_force
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
        frames = of_structures(
            list(steps.values()), title=title, indices=indices, num_frames=self.num_steps, axis="step"
        )
        if self._pressure is not None:
            frames.panels = [
                replace(panel, level=self._pressure) if panel.title == PRESSURE else panel for panel in frames.panels
            ]
        if len(self._cell_forces) > 1:
            forces = np.array([self._cell_forces.get(step, np.nan) for step in steps])
            line = Line("force on the cell", frames.x, forces)
            frames.panels.append(Panel("force on the cell / eV per atom", [line], logarithmic=spans(forces)))
        return frames

    def _too_many(self, num_atoms: int) -> bool:
        return len(self._kept) > self._most_frames or len(self._kept) * num_atoms > self._most_positions
