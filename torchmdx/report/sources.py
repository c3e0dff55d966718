"""Data to evaluate: stores, and other files after conversion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from torchmdx.datasets.conversion import convert
from torchmdx.datasets.splits import PARTS, read_split
from torchmdx.datasets.store import Store
from torchmdx.runtime.wording import counted

MOST_SETS = 6  # more do not fit side by side


class Sources:
    """Stores for files of any kind, and sets of frames from them. A context manager, which removes converted copies.

    Attributes:
        warnings: Of the conversions. Raises errors of `convert`, `Store.open` and `read_split`.
    """

    def __init__(self, reading: Mapping[str, Any], *, say: Callable[[str], None]) -> None:
        """reading: arguments of `convert`. say: told what is being read."""
        self._reading, self._say = reading, say
        self._stack = ExitStack()
        self.warnings: list[str] = []

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def sets(self, files: Sequence[str]) -> dict[str, tuple[Store, np.ndarray]]:
        """A set for each file, by its name; files other than stores are one set if there are many."""
        others = [file for file in files if not Store.is_store(file)]
        together = len(files) > MOST_SETS and len(others) > 1
        found = {file: Store.open(file) for file in files if file not in others}
        if together:
            found[f"{len(others)} files"] = self._converted(others)
        else:
            found |= {file: self._converted([file]) for file in others}
        ordered = sorted(found, key=lambda name: files.index(name) if name in files else len(files))
        names = _short(ordered)
        return {names[name]: (found[name], np.arange(len(found[name]))) for name in ordered}

    def split(self, files: Sequence[str], split: str, parts: Sequence[str]) -> dict[str, tuple[Store, np.ndarray]]:
        """Parts of a recorded split of the files' frames that are not empty; all of them if `parts` is empty."""
        if len(files) == 1 and Store.is_store(files[0]):
            store = Store.open(files[0])
        elif any(Store.is_store(file) for file in files):
            raise ValueError(f"a split belongs to one store, or to files that make one, got {', '.join(files)}")
        else:
            store = self._converted(files)
        indices = read_split(split, store)
        found = {name: (store, indices[name]) for name in parts or PARTS if len(indices[name])}
        if not found:
            raise ValueError(f"the part {' and '.join(parts)} of {split!r} is empty")
        return found

    def together(self, files: Sequence[str]) -> Store:
        """All frames of some files, or of one store. Raises ValueError for several of which one is a store."""
        if len(files) == 1 and Store.is_store(files[0]):
            return Store.open(files[0])
        if stores := [file for file in files if Store.is_store(file)]:
            raise ValueError(f"give one store, or files other than stores, got {stores[0]!r} among {len(files)}")
        return self._converted(files)

    def _converted(self, files: Sequence[str]) -> Store:
        folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="torchmdx-evaluate-")))
        self._say(f"reading {files[0]}" + (f" and {len(files) - 1} more" if len(files) > 1 else ""))
        summary = convert(files, folder / "store", **self._reading, log=lambda line: None)
        if summary.num_broken:
            were = "was" if summary.num_broken == 1 else "were"
            broken = counted(summary.num_broken, "broken frame")
            self.warnings.append(f"{broken} of {', '.join(files)} {were} left out")
        self.warnings += summary.warnings
        return Store.open(folder / "store")


def source_names(store: Store) -> str:
    """The files that the frames of a store are from, or how many these are."""
    names = list(dict.fromkeys(Path(source).name or source for source in store.sources))
    return ", ".join(names) if len(names) <= 3 else counted(len(names), "file")


def _short(paths: Sequence[str]) -> dict[str, str]:
    """The last part of each path, or the whole path if these are not unique."""
    last = [Path(path).name for path in paths]
    return {path: name if last.count(name) == 1 and name else path for path, name in zip(paths, last, strict=True)}
