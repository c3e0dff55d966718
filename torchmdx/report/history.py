"""Tables of numbers that grow during training: CSV files that can be read and resumed after a kill."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchmdx.runtime.files import write_whole

STEPS, EPOCHS = "steps.csv", "epochs.csv"


class HistoryFile:
    """A CSV file of numbers. `write` flushes every row.

    Rows name their columns: a row may omit columns (its fields are empty). For a new column the file is rewritten with
    empty fields in earlier rows.
    """

    def __init__(self, path: Path, index: tuple[str, ...], resume_at: int | None = None) -> None:
        """index: names of the leading integer columns; "step" is the one that `resume_at` refers to.

        Args:
            resume_at: None starts a new file; otherwise rows after that step, and an incomplete last line, are removed.

        Raises:
            ValueError: If the file is not such a table.
        """
        self.path, self._index = path, index
        names, lines = list(index), []
        if resume_at is not None and path.exists() and path.stat().st_size:
            names, rows = _split(path, index)
            at = index.index("step")
            lines = [",".join(fields) for fields in rows if int(fields[at]) <= resume_at]
        self._replace(names, lines)

    def write(self, index: tuple[int, ...], values: Mapping[str, float]) -> None:
        """Writes a row. Raises OSError if the disk is full; earlier rows stay readable."""
        new = [name for name in values if name not in self._names]
        if new:
            for name in new:
                _require_name(name)
            rows, old = self.path.read_text().splitlines()[1:], self._file
            self._replace(self._names + new, [row + "," * len(new) for row in rows])
            old.close()
        fields = [str(int(value)) for value in index]
        fields += [_field(values.get(name)) for name in self._names[len(self._index) :]]
        self._file.write((",".join(fields) + "\n").encode())

    def close(self) -> None:
        """Synchronizes the file with the disk and closes it."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()

    def _replace(self, names: list[str], lines: list[str]) -> None:
        """The file as these columns and rows, whole or not at all, open for more."""
        write_whole(self.path, "".join(line + "\n" for line in (",".join(names), *lines)).encode())
        self._names = names
        self._file = self.path.open("ab", buffering=0)


def read_table(path: Path) -> dict[str, NDArray[np.float64]]:
    """Columns by name; empty fields are NaN. Skips an incomplete last line. Raises FileNotFoundError, ValueError."""
    names, rows = _split(path, ())
    try:
        numbers = [[float(field or "nan") for field in row] for row in rows]
    except ValueError as error:
        raise ValueError(f"every field of {str(path)!r} must be a number or empty: {error}") from error
    return dict(zip(names, np.array(numbers, dtype=np.float64).reshape(len(rows), len(names)).T, strict=True))


def _split(path: Path, index: tuple[str, ...]) -> tuple[list[str], list[list[str]]]:
    """Names, and fields of every whole row."""
    lines = path.read_text().split("\n")[:-1]  # what follows the last line break is torn, or nothing
    names = lines[0].split(",") if lines else []
    if not names or tuple(names[: len(index)]) != index:
        raise ValueError(
            f"{str(path)!r} must be a table that begins with the columns {', '.join(index) or 'of a log'}, "
            f"got {(lines or [''])[0][:80]!r}"
        )
    rows = [line.split(",") for line in lines[1:]]
    for number, fields in enumerate(rows, start=2):
        if len(fields) != len(names) or not all(field.lstrip("-").isdigit() for field in fields[: len(index)]):
            raise ValueError(
                f"line {number} of {str(path)!r} must have {len(names)} fields like its first line, "
                f"got {','.join(fields)[:80]!r}"
            )
    return names, rows


def _require_name(name: str) -> None:
    if not name or any(character in name for character in ',"\n\r'):
        raise ValueError(f"the name of a column must have no commas, quotes or line breaks, got {name!r}")


def _field(value: float | None) -> str:
    """Nine digits, which preserve float32."""
    if value is None:
        return ""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else f"{float(value):.9g}"
