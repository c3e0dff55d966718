"""Writing files: existing ones are kept unless the user agrees, and replaced when the new content is complete."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def require_new(*paths: str | Path, remedy: str = "--overwrite replaces them") -> None:
    """Raises FileExistsError that names those of the paths that exist. remedy: what the user can do."""
    existing = [str(path) for path in paths if os.path.lexists(path)]
    if existing:
        raise FileExistsError(f"output files must not exist, got {', '.join(existing)}; {remedy}")


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file atomically. Raises OSError, which names the path; an existing file is then unchanged."""
    with whole_file(path) as file:
        file.write(content)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A binary file to write to, which replaces `path` when the block ends without an error.

    Raises OSError that names the path, for example if the disk is full; an existing file is then unchanged.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with naming_writes(path):
            # Opened with default permissions, so that other users may read it.
            with partial.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
            _sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def naming_writes(path: str | Path) -> Iterator[None]:
    """Turns an OSError into one that names the file, for example if the disk is full."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        # With errno, so that the subclass stays the same, such as PermissionError.
        arguments = () if error.errno is None else (error.errno,)
        raise OSError(*arguments, f"{str(path)!r} could not be written ({reason})") from error


def write_all(file: BinaryIO, data: bytes) -> None:
    """Writes all data: an unbuffered write may write only part of them, without an error."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _sync_folder(folder: Path) -> None:
    """Flushes the new name to disk, if the file system supports it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
