"""The state of files that a store was made from, to notice that they have changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any


def source_state(files: Iterable[str | Path], reading: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes and times of change of the files, folders with all that is in them, and how they are read; JSON values."""
    return {"files": {str(file): _of_file(Path(file)) for file in files}, "reading": _given(reading)}


def changed(state: Mapping[str, Any], before: Mapping[str, Any] | None) -> list[str]:
    """What differs from an earlier state: files by name, and "how files are read". None: everything is unknown."""
    if before is None:
        return list(state["files"])
    files, old = state["files"], before.get("files", {})
    names = [name for name in dict.fromkeys((*files, *old)) if files.get(name) != old.get(name)]
    return names if state["reading"] == before.get("reading") else [*names, "how files are read"]


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are not None."""
    found = {name: _given(value) if isinstance(value, Mapping) else value for name, value in values.items()}
    return {name: value for name, value in found.items() if value is not None}


def _of_file(path: Path) -> list[list[str | int]]:
    """Name, bytes and time of change, ns, of a file or of all files of a folder; none for a missing one."""
    return [[name, file.stat().st_size, file.stat().st_mtime_ns] for name, file in _files(path)]


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    if path.is_dir():
        yield from ((str(file.relative_to(path)), file) for file in sorted(path.rglob("*")) if file.is_file())
    elif path.exists():
        yield path.name, path
