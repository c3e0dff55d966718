"""A line that says how far a run is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from torchmdx.dynamics.log import LogRow
from torchmdx.runtime.progress_line import ProgressLine, bar, duration
from torchmdx.runtime.wording import number
from torchmdx.structures.units import PICOSECOND

SECONDS_A_DAY = 86400.0
FEMTOSECONDS_A_NS = 1e3 * PICOSECOND


class SimulationProgress:
    """Step, time, temperature, energy, speed and time left; on a terminal one line, otherwise one now and then."""

    def __init__(
        self,
        stream: TextIO,
        first_step: int,
        num_steps: int,
        timestep: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._line = ProgressLine(stream, clock)
        self._num_steps, self._timestep = num_steps, timestep
        self._since: tuple[int, float] | None = None
        self._first_step = first_step

    def expect(self, num_steps: int) -> None:
        """Corrects the number of steps."""
        self._num_steps = num_steps

    def update(self, step: int, row: LogRow | None, *, last: bool = False) -> None:
        """Draws the line if it is time to. row: the newest of the log."""
        now = self._line.clock()
        if self._since is None and step > self._first_step:
            self._since = (step, now)  # the first steps compile and capture: they say nothing on the speed
        if last or self._line.due():
            self._line.draw(self._text(step, row, self._steps_a_second(step, now)))

    def finish(self) -> None:
        """Leaves the line."""
        self._line.finish()

    def _steps_a_second(self, step: int, now: float) -> float | None:
        if self._since is None or step <= self._since[0] or now <= self._since[1]:
            return None
        return (step - self._since[0]) / (now - self._since[1])

    def _text(self, step: int, row: LogRow | None, rate: float | None) -> str:
        done = step / self._num_steps
        parts = [f"{done:4.0%}", f"step {step:,}/{self._num_steps:,}", f"{step * self._timestep / PICOSECOND:.3f} ps"]
        if self._line.on_terminal:
            parts.insert(0, bar(done))
        if row is not None:
            parts += [f"{row.temperature:.0f} K", f"{row.total:.4f} eV"]
        if rate is not None:
            parts.append(f"{number(ns_per_day(rate, self._timestep))} ns/day")
            parts.append(f"{duration((self._num_steps - step) / rate)} left")
        return "  ".join(parts)


def ns_per_day(steps_a_second: float, timestep: float) -> float:
    """Simulated nanoseconds a day. timestep: fs."""
    return steps_a_second * timestep * SECONDS_A_DAY / FEMTOSECONDS_A_NS
