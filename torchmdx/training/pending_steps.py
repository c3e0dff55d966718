"""Values of training steps, read from the device late and for many steps at once, so that the device never waits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchmdx.training.labelled import LabelledBatch
from torchmdx.training.step import NORM, OVERFLOW, VALUES, TrainStep

# A list can overflow after it has grown: in another process, or with the structures of a later batch.
MAX_TRIES = 20


class TrainingError(ValueError):
    """A training run that cannot continue; the message has the step and the frames."""


class PendingSteps:
    """Steps whose values have not been read: reads every `every` steps, and repeats those that an overflow skipped."""

    def __init__(self, step: TrainStep, every: int, frame_names: Callable[[LabelledBatch], str]) -> None:
        self.step, self.every, self.frame_names = step, every, frame_names
        self._waiting: list[tuple[int, LabelledBatch, Tensor]] = []

    def add(self, number: int, labelled: LabelledBatch, values: Tensor) -> list[tuple[int, LabelledBatch, list[float]]]:
        """Adds a step; returns (number, batch, values) of all pending steps if it is time to read them."""
        self._waiting.append((number, labelled, values))
        return self.flush() if len(self._waiting) >= self.every else []

    def flush(self) -> list[tuple[int, LabelledBatch, list[float]]]:
        """(number, batch, values) of all pending steps. Raises TrainingError for a non-finite loss or gradient."""
        if not self._waiting:
            return []
        waiting, self._waiting = self._waiting, []
        table = torch.stack([values for _, _, values in waiting]).tolist()
        found = []
        for (number, labelled, _), row in zip(waiting, table, strict=True):
            if row[OVERFLOW]:
                row = self._repeat(number, labelled)
            self._require_finite(number, labelled, row)
            found.append((number, labelled, row))
        return found

    def _repeat(self, number: int, labelled: LabelledBatch) -> list[float]:
        for _ in range(MAX_TRIES):
            row: list[float] = self.step(labelled).tolist()
            if not row[OVERFLOW]:
                return row
            self.step.grow(labelled)
        raise TrainingError(f"the neighbour list of step {number} still overflows after growing {MAX_TRIES} times")

    def _require_finite(self, number: int, labelled: LabelledBatch, row: list[float]) -> None:
        if all(abs(row[k]) < float("inf") for k in (0, NORM)):
            return
        values = zip(VALUES[: NORM + 1], row, strict=False)
        shown = ", ".join(f"{name} {value:.4g}" for name, value in values if value or name == "loss")
        raise TrainingError(
            f"loss and gradient must be finite, got {shown} in step {number} with {self.frame_names(labelled)}; "
            "the weights are those before this step. Possible causes: coincident atoms, an outlier in the labels, or a "
            "learning rate that is too large"
        )
