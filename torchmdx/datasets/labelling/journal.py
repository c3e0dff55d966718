"""An append-only file of records that survives a kill at any moment.

::

    magic | record | record | ...      record = mark, lengths of both parts, checksum | header, JSON | arrays, bytes

The first record holds the settings of the run. On opening, an incomplete record at the end is cut off, and a damaged
one in the middle is skipped. Who opens one holds the lock of its output.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from torchmdx.runtime.damaged_file import naming, parse_json

MAGIC = b"torchmdx label 1\n"
MARK = b"\xf5rec"  # begins a record; 0xf5 occurs in no UTF-8 text
PREFIX = struct.Struct("<4sIQI")  # mark, bytes of the header, bytes of the arrays, CRC-32 of both and of their lengths
DTYPES = {"<f8", "<i8", "|b1"}
SEARCHED = 1 << 20  # bytes at a time
WASTED = 16  # times the size of the file: the most that is read for incomplete records
SYNCED_EVERY = 1.0  # s: what a power failure may cost; a kill costs nothing that was appended


class Journal:
    """Records of one run, on disk. Opened with the settings of the run that wants to write.

    Args:
        anew: Delete all records.

    Attributes:
        discarded: Bytes of incomplete or damaged records, found on opening.

    Raises:
        ValueError: If the file is not a journal or has other settings.
    """

    def __init__(self, path: Path, settings: dict[str, Any], *, anew: bool = False) -> None:
        self.path, self.discarded, self._synced = path, 0, time.monotonic()
        settings = json.loads(json.dumps(settings))
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            found = self._find_records()
            before = self._settings(found[0]) if found and not anew else settings
            if len(found) > 1 and not anew:
                _require_same(path, before, settings)
                os.ftruncate(self._file, self._end)
            else:
                self._begin(settings)
        except BaseException:
            os.close(self._file)
            raise

    def close(self) -> None:
        self._sync()
        os.close(self._file)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def append(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> int:
        """Writes a record and returns its offset. Raises OSError (a full disk) and leaves the file unchanged."""
        kept = {name: _portable(array) for name, array in arrays.items()}
        shapes = [[name, array.dtype.str, list(array.shape)] for name, array in kept.items()]
        head = json.dumps({**header, "arrays": shapes}).encode()
        body = b"".join(array.tobytes() for array in kept.values())
        return self._write(_record(head, body))

    def read(self, offset: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Header and arrays of the record at this offset."""
        parts = self._parts(offset)
        if parts is None:
            raise OSError(f"{str(self.path)!r} changed while it was in use: no complete record at byte {offset}")
        head, body = parts
        with naming(self.path):
            header = parse_json(head)
            if not isinstance(header, dict):
                raise ValueError(f"the header of the record at byte {offset} must be an object")
            arrays, start = {}, 0
            for name, dtype, shape in header.pop("arrays", []):
                if dtype not in DTYPES:
                    raise ValueError(f"arrays must be of {', '.join(sorted(DTYPES))}, got {dtype!r}")
                if not all(type(length) is int and length >= 0 for length in shape):
                    raise ValueError(f"array {name!r} must have lengths >= 0, got {shape!r:.80}")
                count = math.prod(shape)
                arrays[name] = (
                    np.frombuffer(body, dtype, count, start).reshape(shape) if count else np.zeros(shape, dtype)
                )
                start += count * np.dtype(dtype).itemsize
            return header, arrays

    def records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Offset and header of each record after the settings."""
        for offset in self._whole():
            header, _ = self.read(offset)
            if "settings" not in header:
                yield offset, header

    def _find_records(self) -> list[int]:
        """Offsets of all whole records. Sets `_end` to the end of the last one."""
        size = os.fstat(self._file).st_size
        if not MAGIC.startswith(os.pread(self._file, len(MAGIC), 0)):
            raise ValueError(f"{str(self.path)!r} must be a journal of torchmdx label, got another file")
        found, self._end = [], size
        whole = len(MAGIC)
        for offset in self._whole():
            found.append(offset)
            whole += self._length(offset)
        self.discarded = size - whole if found else 0
        self._end = found[-1] + self._length(found[-1]) if found else 0
        return found

    def _settings(self, offset: int) -> dict[str, Any]:
        settings = self.read(offset)[0].get("settings")
        if not isinstance(settings, dict):
            raise ValueError(f"{str(self.path)!r} is damaged: it must begin with the settings of its run")
        return settings

    def _begin(self, settings: dict[str, Any]) -> None:
        self._end = self.discarded = 0
        os.ftruncate(self._file, 0)
        self._write(MAGIC + _record(json.dumps({"settings": settings}).encode(), b""))
        self._sync()
        _sync_folder(self.path)

    def _whole(self) -> Iterator[int]:
        """Offset of each whole record; after one that is not whole, the search continues at the next mark."""
        offset = len(MAGIC)
        # False marks, each with a length up to the end of the file, would make it be read once for each of them.
        left = WASTED * self._end + SEARCHED
        while offset < self._end:
            if self._parts(offset) is not None:
                yield offset
                offset += self._length(offset)
            else:
                left -= self._claimed(offset)
                if left < 0:
                    raise ValueError(f"{str(self.path)!r} is damaged in too many places to be read")
                offset = self._next_mark(offset + 1)

    def _next_mark(self, start: int) -> int:
        while start < self._end:
            found = os.pread(self._file, SEARCHED, start).find(MARK)
            if found >= 0:
                return start + found
            start += SEARCHED - len(MARK) + 1
        return self._end

    def _write(self, data: bytes) -> int:
        offset, written = self._end, 0
        try:
            while written < len(data):
                written += os.pwrite(self._file, data[written:], offset + written)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, offset)
            where = f"{str(self.path)!r} could not be written: {error.strerror}; it keeps all earlier records"
            raise OSError(error.errno, where) from error
        self._end += len(data)
        if time.monotonic() - self._synced > SYNCED_EVERY:
            self._sync()
        return offset

    def _sync(self) -> None:
        os.fsync(self._file)
        self._synced = time.monotonic()

    def _parts(self, offset: int) -> tuple[bytes, bytes] | None:
        """Header and arrays of the record at this offset, as bytes; None if it is not whole."""
        prefix = os.pread(self._file, PREFIX.size, offset)
        if len(prefix) < PREFIX.size:
            return None
        mark, first, second, checksum = PREFIX.unpack(prefix)
        if mark != MARK or offset + PREFIX.size + first + second > self._end:
            return None
        data = os.pread(self._file, first + second, offset + PREFIX.size)
        if len(data) < first + second or zlib.crc32(data, zlib.crc32(prefix[:-4])) != checksum:
            return None
        return data[:first], data[first:]

    def _claimed(self, offset: int) -> int:
        """Bytes read to find that no whole record begins at this offset."""
        prefix = os.pread(self._file, PREFIX.size, offset)
        if len(prefix) < PREFIX.size or not prefix.startswith(MARK):
            return 0
        length = self._length(offset)
        return length if offset + length <= self._end else 0

    def _length(self, offset: int) -> int:
        """Bytes of the record at this offset."""
        _, first, second, _ = PREFIX.unpack(os.pread(self._file, PREFIX.size, offset))
        return int(PREFIX.size + first + second)


def _record(head: bytes, body: bytes) -> bytes:
    prefix = PREFIX.pack(MARK, len(head), len(body), 0)[:-4]
    return prefix + struct.pack("<I", zlib.crc32(head + body, zlib.crc32(prefix))) + head + body


def _portable(array: np.ndarray) -> np.ndarray:
    kinds = {"f": "<f8", "i": "<i8", "u": "<i8", "b": "|b1"}
    return np.ascontiguousarray(array, kinds[np.asarray(array).dtype.kind])


def _require_same(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises ValueError that names each setting that differs between a run and its continuation."""
    names = [*now, *(name for name in before if name not in now)]
    differing = [
        f"{name} {now.get(name)}, was {before.get(name)}" for name in names if now.get(name) != before.get(name)
    ]
    if differing:
        raise ValueError(
            f"continuing {str(path)!r} needs the settings that it was started with, got {'; '.join(differing)}; "
            "--overwrite starts again"
        )


def _sync_folder(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
