"""What the host learns of steps on the device: late, and all at once, so that the device never waits for it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchmdx.training.labelled import LabelledBatch
from torchmdx.training.step import NORM, OVERFLOW, VALUES, TrainStep

# A list can overflow again after it has grown: another process's did, or the structures of a later batch.
MOST_TRIES = 20


class TrainingError(ValueError):
    """A training that cannot go on; says at which step, and on which frames."""


class Reader:
    """Values of steps that were taken, read `every` so many; steps that an overflow left out are done again then."""

    def __init__(self, step: TrainStep, every: int, frame_names: Callable[[LabelledBatch], str]) -> None:
        self.step, self.every, self.frame_names = step, every, frame_names
        self._waiting: list[tuple[int, LabelledBatch, Tensor]] = []

    def add(self, number: int, labelled: LabelledBatch, values: Tensor) -> list[tuple[int, LabelledBatch, list[float]]]:
        """Takes note of a step; returns (number, batch, values) of steps when it is time to read, else nothing."""
        self._waiting.append((number, labelled, values))
        return self.flush() if len(self._waiting) >= self.every else []

    def flush(self) -> list[tuple[int, LabelledBatch, list[float]]]:
        """Of every step that has not been read. Raises TrainingError for a loss or gradient that is not finite."""
        if not self._waiting:
            return []
        waiting, self._waiting = self._waiting, []
        table = torch.stack([values for _, _, values in waiting]).tolist()
        found = []
        for (number, labelled, _), row in zip(waiting, table, strict=True):
            if row[OVERFLOW]:
                row = self._again(number, labelled)
            self._require_finite(number, labelled, row)
            found.append((number, labelled, row))
        return found

    def _again(self, number: int, labelled: LabelledBatch) -> list[float]:
        for _ in range(MOST_TRIES):
            row: list[float] = self.step(labelled).tolist()
            if not row[OVERFLOW]:
                return row
            self.step.grow(labelled)
        raise TrainingError(f"the neighbour list of step {number} overflowed {MOST_TRIES} times")

    def _require_finite(self, number: int, labelled: LabelledBatch, row: list[float]) -> None:
        if all(abs(row[k]) < float("inf") for k in (0, NORM)):
            return
        shown = ", ".join(f"{name} {value:.4g}" for name, value in zip(VALUES[:5], row, strict=False))
        raise TrainingError(
            f"loss and gradient must be finite, got {shown} in step {number} with {self.frame_names(labelled)}; "
            "the weights are those before it. Two atoms at one place, an outlier, or too large a learning rate do this"
        )
