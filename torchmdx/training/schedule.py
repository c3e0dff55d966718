"""Learning-rate schedules."""

from __future__ import annotations

import math

from torchmdx.training.config import ScheduleSection


class Schedule:
    """The learning rate of each step, and the state of plateau. `state` has all that a resume needs."""

    def __init__(self, settings: ScheduleSection, learning_rate: float, num_steps: int) -> None:
        self.settings, self.learning_rate, self.num_steps = settings, learning_rate, num_steps
        self.factor, self.best, self.waited = 1.0, math.inf, 0

    def rate(self, step: int) -> float:
        """The learning rate of a global step, counted from 0."""
        s = self.settings
        warm = min(1.0, (step + 1) / (s.warmup_steps + 1))
        if s.name == "constant":
            return self.learning_rate * warm
        if s.name == "plateau":
            return self.learning_rate * warm * self.factor
        length = max(1, self.num_steps - s.warmup_steps)
        share = min(max((step - s.warmup_steps) / length, 0.0), 1.0)
        wave = (1 + math.cos(math.pi * share)) / 2
        return self.learning_rate * warm * (s.final_factor + (1 - s.final_factor) * wave)

    def validated(self, loss: float) -> None:
        """Registers a validation loss; plateau reduces the rate after too many without improvement."""
        if loss < self.best:
            self.best, self.waited = loss, 0
            return
        self.waited += 1
        s = self.settings
        if s.name == "plateau" and self.waited >= s.plateau_patience:
            self.factor, self.waited = max(self.factor * s.plateau_factor, s.final_factor), 0

    def state(self) -> dict[str, float]:
        return {"factor": self.factor, "best": self.best, "waited": self.waited}

    def load_state(self, state: dict[str, float]) -> None:
        self.factor, self.best, self.waited = state["factor"], state["best"], int(state["waited"])
