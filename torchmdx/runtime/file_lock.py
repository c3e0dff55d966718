"""A lock between processes on one piece of work, such as the compilation of one library."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def only_one(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Holds a lock file, and removes it; `waiting` is called if another process holds it.

    The lock ends with the process, however it ends. Where files cannot be locked, as on some network file systems, the
    work continues without.
    """
    handle = _locked(path, waiting)
    try:
        yield
    finally:
        if handle is not None:
            path.unlink(missing_ok=True)  # while it is held: a process that waits for it sees that it is gone
            os.close(handle)


def _locked(path: Path, waiting: Callable[[], None]) -> int | None:
    """A descriptor of the locked file at this path; None if it cannot be locked."""
    told = False
    while True:
        try:
            handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not told:
                    waiting()
                told = True
                fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            os.close(handle)
            return None
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(handle).st_ino:
                return handle
        os.close(handle)  # the one before removed it
