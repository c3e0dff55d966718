"""Progress of labelling."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from torchmdx.runtime.progress_line import ProgressLine, bar, duration
from torchmdx.runtime.wording import number


class LabellingProgress:
    """Count, failures, speed and time left; one line on a terminal, a line every 30 s in a file."""

    def __init__(
        self, stream: TextIO, things: str, done: int, total: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._line = ProgressLine(stream, clock)
        self._things, self._done, self._total, self._failed = things, done, total, 0
        self._began, self._at_first = clock(), done

    def advance(self, *, failed: bool = False) -> None:
        """Counts one more item, done or failed."""
        self._done += 1
        self._failed += failed

    def show(self, *, last: bool = False) -> None:
        """Draws the line if it is due, or if it is the last."""
        if last or self._line.due():
            self._line.draw(self._text())

    def finish(self) -> None:
        """Draws the last line and ends it."""
        self.show(last=True)
        self._line.finish()

    def _text(self) -> str:
        share = self._done / self._total if self._total else 1.0
        parts = [f"{int(100 * share):3d}%", f"{self._done:,}/{self._total:,} {self._things}"]
        if self._line.on_terminal:
            parts.insert(0, bar(share))
        if self._failed:
            parts.append(f"{self._failed:,} failed")
        seconds, here = self._line.clock() - self._began, self._done - self._at_first
        if here and seconds > 0:
            rate = here / seconds
            parts.append(_speed(rate))
            parts.append(f"{duration((self._total - self._done) / rate)} left")
        return "  ".join(parts)


def _speed(rate: float) -> str:
    if rate < 1:
        return f"{number(1 / rate)} s each"
    return f"{rate:,.0f}/s" if rate >= 100 else f"{rate:.3g}/s"
