"""Files that appear whole or not at all: what was at their path stays until the new content is on the disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file. Raises OSError, which names it, and leaves what was there."""
    with whole_file(path) as file:
        file.write(content)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A binary file to write to, which takes its place at `path` when the block ends without an error.

    Raises OSError that names the path, where the disk is full for example; what was at the path stays as it was.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        # Opened as any new file is, so that others may read it.
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        _sync_folder(path.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        # With its number, so that the kind of error stays the same: PermissionError, FileNotFoundError.
        arguments = () if error.errno is None else (error.errno,)
        raise OSError(*arguments, f"{str(path)!r} could not be written ({reason})") from error
    finally:
        partial.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """The new name on the disk as well, where the file system can do that; the content is there already."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
