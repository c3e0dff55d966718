"""What a command writes to the console besides its results: warnings, errors, and the end of a closed pipe."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torchmdx

PACKAGE = str(Path(torchmdx.__file__).parent)
BAD_INPUT = 2  # exit status
CLOSED_PIPE = 128 + 13  # exit status by convention of shells: SIGPIPE


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Prints each warning once, like an error and without its place in the code; at the end, how often it came."""
    counts: Counter[str] = Counter()

    def show(message: Warning | str, *where: Any, **more: Any) -> None:
        text = str(message)
        counts[text] += 1
        if counts[text] == 1:
            print(f"torchmdx: warning: {text}", file=sys.stderr)

    with warnings.catch_warnings():
        # Last, so that filters of the user or of tests come first. Python alone would not report repetitions.
        warnings.simplefilter("always", UserWarning, append=True)
        warnings.showwarning = show
        try:
            yield
        finally:
            for text, count in counts.items():
                if count > 1:
                    print(f"torchmdx: warning: {count} times: {text}", file=sys.stderr)


def print_error(error: BaseException) -> None:
    """Prints an error in one line, and how to see the traceback if the error is not one of the input."""
    print(f"torchmdx: error: {error}", file=sys.stderr)
    if not is_explained(error):
        print("(set TORCHMDX_TRACEBACK=1 for the traceback)", file=sys.stderr)


def is_explained(error: BaseException) -> bool:
    """Whether the message is for a user: of the operating system, or raised by torchmdx itself."""
    from torchmdx.step.results import StepError  # imports torch

    if isinstance(error, (OSError, ImportError, StepError)):
        return True
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and frame.tb_frame.f_code.co_filename.startswith(PACKAGE + os.sep)


def open_closed_streams() -> None:
    """Replaces an output that was closed before Python started, as by `>&-`, by the null device.

    The next file that is opened would get its number, and then everything that libraries print.
    """
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is not None:
            continue
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.fstat(number)
        except OSError:
            os.dup2(nowhere, number)
        setattr(sys, name, os.fdopen(nowhere, "w"))


def end_of_pipe() -> int:
    """The exit status after a reader of the output has closed its pipe; nothing more is written."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
            continue
        with contextlib.suppress(OSError, ValueError):
            os.dup2(nowhere, stream.fileno())  # Python writes the rest of its buffer at exit
    os.close(nowhere)
    return CLOSED_PIPE
