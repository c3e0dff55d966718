"""A line that says how far a run is."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TextIO

from torchmdx.md.log import Row
from torchmdx.units import PICOSECOND

SECONDS_A_DAY = 86400.0
FEMTOSECONDS_A_NS = 1e3 * PICOSECOND
REDRAWN_EVERY, PRINTED_EVERY = 0.2, 30.0  # s: a terminal's line, and lines of a file
BAR = 20


class Progress:
    """Step, time, temperature, energy, speed and time left; on a terminal one line, otherwise one now and then."""

    def __init__(
        self,
        stream: TextIO,
        first_step: int,
        num_steps: int,
        timestep: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._stream, self._clock = stream, clock
        self._num_steps, self._timestep = num_steps, timestep
        self._on_terminal = stream.isatty()
        self._drawn = -float("inf")
        self._since: tuple[int, float] | None = None
        self._first_step = first_step
        self._width = 0

    def update(self, step: int, row: Row | None, *, last: bool = False) -> None:
        """Draws the line if it is time to. row: the newest of the log."""
        now = self._clock()
        if self._since is None and step > self._first_step:
            self._since = (step, now)  # the first steps compile and capture: they say nothing on the speed
        pause = REDRAWN_EVERY if self._on_terminal else PRINTED_EVERY
        if not last and now - self._drawn < pause:
            return
        self._drawn = now
        self._draw(self._text(step, row, self._steps_a_second(step, now)))

    def finish(self) -> None:
        """Leaves the line."""
        if self._on_terminal and self._width:
            self._stream.write("\n")
            self._stream.flush()

    def _steps_a_second(self, step: int, now: float) -> float | None:
        if self._since is None or step <= self._since[0] or now <= self._since[1]:
            return None
        return (step - self._since[0]) / (now - self._since[1])

    def _text(self, step: int, row: Row | None, rate: float | None) -> str:
        done = step / self._num_steps
        parts = [f"{done:4.0%}", f"step {step:,}/{self._num_steps:,}", f"{step * self._timestep / PICOSECOND:.3f} ps"]
        if self._on_terminal:
            full = int(done * BAR)
            parts.insert(0, f"[{'#' * full}{'.' * (BAR - full)}]")
        if row is not None:
            parts += [f"{row.temperature:.0f} K", f"{row.total:.4f} eV"]
        if rate is not None:
            parts.append(f"{ns_per_day(rate, self._timestep):.3g} ns/day")
            parts.append(f"{duration((self._num_steps - step) / rate)} left")
        return "  ".join(parts)

    def _draw(self, text: str) -> None:
        if self._on_terminal:
            text = text[: shutil.get_terminal_size().columns - 1]
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()


def ns_per_day(steps_a_second: float, timestep: float) -> float:
    """Simulated nanoseconds a day. timestep: fs."""
    return steps_a_second * timestep * SECONDS_A_DAY / FEMTOSECONDS_A_NS


def duration(seconds: float) -> str:
    """12:34, or 1:02:03, or 3 d 04:05:06."""
    whole = round(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours:02}:{minutes:02}:{whole % 60:02}"
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
