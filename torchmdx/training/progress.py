"""The line that says how far a training is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TextIO

from torchmdx.runtime.progress_line import ProgressLine, bar, duration


class TrainingProgress:
    """Epoch, losses, ms per step, atoms/s and time left; on a terminal one line, otherwise one now and then.

    Args:
        num_epochs: Of the whole training.
        first_epoch: The one this process begins with; epochs count from 1.
    """

    def __init__(
        self,
        stream: TextIO,
        num_epochs: int,
        first_epoch: int = 1,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not 1 <= first_epoch <= num_epochs + 1:
            raise ValueError(f"first_epoch must be from 1 to {num_epochs + 1}, got {first_epoch}")
        self._line = ProgressLine(stream, clock)
        self._num_epochs = num_epochs
        self._epoch, self._done_steps, self._at = first_epoch, 0, clock()
        self._speed = _Speed()
        self._remembered: dict[str, float] = {}

    def update(
        self, epoch: int, done_steps: int, num_steps: int, values: Mapping[str, float], atoms_a_step: float = 0.0
    ) -> None:
        """After a step: done_steps of the epoch's num_steps are done. Draws the line if it is time to.

        Args:
            values: What to show, by name, such as the losses; they may be as old as the last time they were read.
            atoms_a_step: Real atoms (not padding) in a step, on average; 0 leaves atoms/s away.
        """
        now = self._line.clock()
        if epoch != self._epoch or done_steps < self._done_steps:
            self._epoch, self._done_steps = epoch, 0
            self._speed.fade()
        self._speed.add(done_steps - self._done_steps, now - self._at, now)
        self._done_steps, self._at = done_steps, now
        if self._line.due():
            self._line.draw(self._text(epoch, done_steps, num_steps, values, atoms_a_step))

    def epoch_done(self, epoch: int, num_steps: int, values: Mapping[str, float]) -> None:
        """After validation; values, by name, stay in the line until the next one. The last epoch is always shown."""
        self._epoch, self._done_steps = epoch + 1, 0
        self._remembered = dict(values)
        self._at = self._line.clock()  # what validation took is not the steps'
        self._speed.fade()
        if epoch >= self._num_epochs or self._line.due():
            self._line.draw(self._text(epoch, num_steps, num_steps, {}, 0.0))

    def message(self, text: str) -> None:
        """Prints lines that stay; the line of progress is drawn again below them."""
        self._line.message(text)

    def taking_messages(self) -> AbstractContextManager[None]:
        """Inside `with`, Python's warnings and what torchmdx logs are messages."""
        return self._line.taking_messages()

    def finish(self) -> None:
        """Leaves the line."""
        self._line.finish()

    def _text(
        self, epoch: int, done_steps: int, num_steps: int, values: Mapping[str, float], atoms_a_step: float
    ) -> str:
        share = (epoch - 1 + done_steps / max(num_steps, 1)) / max(self._num_epochs, 1)
        parts = [f"{share:4.0%}", f"epoch {epoch:,}/{self._num_epochs:,}"]
        if self._line.on_terminal:
            parts.insert(0, bar(share))
        if done_steps < num_steps:
            parts.append(f"step {done_steps:,}/{num_steps:,}")
        parts += [shown_value(name, value) for name, value in (*values.items(), *self._remembered.items())]
        if self._speed.step is not None:
            parts.append(f"{1e3 * self._speed.step:.3g} ms/step")
            if atoms_a_step:
                parts.append(f"{short(atoms_a_step / self._speed.step)} atoms/s")
        left = (self._num_epochs - epoch) * num_steps + num_steps - done_steps
        seconds = self._speed.left(left, self._line.clock())
        if seconds is not None and left:
            parts.append(f"{duration(seconds)} left")
        return "  ".join(parts)


def shown_value(name: str, value: float) -> str:
    """A name and its value, with four digits; without an exponent if it is large."""
    return f"{name} {value:,.0f}" if abs(value) >= 1e4 else f"{name} {value:.4g}"


# Values of an epoch that the line shows.
HELD_OUT = ("validation_energy", "validation_forces", "old_energy", "old_forces")


def short_names(values: Mapping[str, float], only: Sequence[str] | None = None) -> dict[str, float]:
    """Values under the names of the line, such as E of training, val E and old F. only: those to keep."""
    sets, terms = {"train": "", "validation": "val ", "old": "old "}, {"energy": "E", "forces": "F"}
    names = {f"{one}_{term}": sets[one] + terms[term] for one in sets for term in terms}
    return {names[name]: v for name, v in values.items() if name in names and (only is None or name in only)}


class _Speed:
    """How long a step takes, the newest counting most, and how long all of them will, validation included."""

    def __init__(self) -> None:
        self._seconds = self._steps = 0.0
        self._all_steps = 0
        self._since: float | None = None

    def add(self, steps: int, seconds: float, now: float) -> None:
        if self._since is None:
            if steps:
                self._since = now  # the first steps compile and capture: they say nothing on the speed
            return
        self._steps, self._seconds, self._all_steps = (
            self._steps + steps,
            self._seconds + seconds,
            self._all_steps + steps,
        )

    def fade(self) -> None:
        self._steps, self._seconds = self._steps / 2, self._seconds / 2

    @property
    def step(self) -> float | None:
        """Seconds a step."""
        return self._seconds / self._steps if self._steps and self._seconds > 0 else None

    def left(self, steps: int, now: float) -> float | None:
        """Seconds that this number of further steps takes, with everything that happens between them."""
        if self._since is None or not self._all_steps or now <= self._since:
            return None
        return steps * (now - self._since) / self._all_steps


def short(number: float) -> str:
    """1234567 as 1.23M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"
