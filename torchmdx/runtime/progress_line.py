"""The line that says how far something is: one that is redrawn on a terminal, one now and then in a file."""

from __future__ import annotations

import logging
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

REDRAWN_EVERY, PRINTED_EVERY = 0.2, 30.0  # s: a terminal's line, and lines of a file
BAR = 20


class ProgressLine:
    """Where progress is drawn, and when; messages stand above it and do not tear it."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.on_terminal = stream.isatty()
        self._stream = stream
        self._drawn = -float("inf")
        self._text = ""

    def due(self) -> bool:
        """Whether the line is old enough to be drawn again."""
        return self.clock() - self._drawn >= (REDRAWN_EVERY if self.on_terminal else PRINTED_EVERY)

    def draw(self, text: str) -> None:
        """Shows the text: in place of the last one on a terminal, cut to its width, and below it in a file."""
        self._drawn = self.clock()
        if self.on_terminal:
            text = text[: shutil.get_terminal_size().columns - 1]
            self._stream.write("\r" + text.ljust(len(self._text)))
            self._text = text
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def message(self, text: str) -> None:
        """Prints lines that stay, above the one that is redrawn."""
        if self._text:
            self._stream.write("\r" + " " * len(self._text) + "\r")
        self._stream.write(text.rstrip("\n") + "\n")
        if self._text:
            self._stream.write(self._text)
        self._stream.flush()

    def finish(self) -> None:
        """Leaves the line; what is printed next stands below it."""
        if self._text:
            self._text = ""
            self._stream.write("\n")
            self._stream.flush()

    @contextmanager
    def taking_messages(self) -> Iterator[None]:
        """Inside, Python's warnings and what torchmdx logs become messages; loggers that a caller set up stay his."""
        logger, handler = logging.getLogger("torchmdx"), _Handler(self)
        unheard = not logger.hasHandlers()
        if unheard:
            logger.addHandler(handler)
        shown = warnings.showwarning
        if self.on_terminal:
            warnings.showwarning = self._show_warning
        try:
            yield
        finally:
            warnings.showwarning = shown
            if unheard:
                logger.removeHandler(handler)

    def _show_warning(self, message: Warning | str, category: type[Warning], *where: Any, **_: Any) -> None:
        self.message(f"{category.__name__}: {message}")


class _Handler(logging.Handler):
    """Sends warnings of the log to the line's messages."""

    def __init__(self, line: ProgressLine) -> None:
        super().__init__(logging.WARNING)
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        self._line.message(f"{record.levelname.lower()}: {record.getMessage()}")


def bar(done: float) -> str:
    """A bar for the share that is done, 0 to 1."""
    full = int(done * BAR)
    return f"[{'#' * full}{'.' * (BAR - full)}]"


def duration(seconds: float) -> str:
    """12:34, or 1:02:03, or 3 d 04:05:06."""
    whole = round(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours:02}:{minutes:02}:{whole % 60:02}"
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
