"""Folders of calculators that work through files, as ASE's FileIOCalculator does: one for each frame."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST_NESTED = 4  # calculators in calculators: a correction of a mixture of a program


class FileFolders:
    """The folders of a calculator and of those in it; those without files are left alone.

    A calculator that was made for a directory other than the working directory gets its folders there, else they are in
    `folder`. Two parts of a calculator never share a folder, and a folder of an earlier attempt is never used again: a
    program that fails must not leave the results of another run to be read.

    Attributes:
        parts: The calculators that work through files.
        used: The folders of the last frame.
    """

    def __init__(self, calculator: Any, folder: Path) -> None:
        self.parts = [part for part in _parts(calculator) if _works_through_files(part)]
        self._homes = [folder if Path(part.directory) == Path() else Path(part.directory) for part in self.parts]
        self.used: list[Path] = []

    def enter(self, frame: str) -> None:
        """Gives the calculators new folders for a frame of this name."""
        self.used = []
        for number, (part, home) in enumerate(zip(self.parts, self._homes, strict=True)):
            place = _new_folder(home, frame if len(self.parts) == 1 else f"{frame}-{number}").resolve()
            part.directory = type(part.directory)(place)
            self.used.append(place)

    def remove(self) -> None:
        """Removes the folders of the last frame and what is in them."""
        for place in self.used:
            shutil.rmtree(place, ignore_errors=True)
        self.used = []


def remove_empty(folder: Path) -> None:
    """Removes the folders in a folder that hold no files, and then itself if nothing is left."""
    if not folder.is_dir():
        return
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):
                path.rmdir()
    with contextlib.suppress(OSError):
        folder.rmdir()


def _new_folder(home: Path, name: str) -> Path:
    """Makes `name`, or `name.1`, `name.2`, ... if an earlier attempt left one."""
    home.mkdir(parents=True, exist_ok=True)
    for attempt in itertools.count():
        place = home / (f"{name}.{attempt}" if attempt else name)
        with contextlib.suppress(FileExistsError):
            place.mkdir()
            return place
    raise AssertionError


def _works_through_files(calculator: Any) -> bool:
    """Whether a calculator's files are in its `directory`; every calculator of ASE has one, most without any files."""
    from ase.calculators.calculator import BaseCalculator, FileIOCalculator
    from ase.calculators.genericfileio import GenericFileIOCalculator

    if not isinstance(getattr(calculator, "directory", None), (str, Path)):
        return False
    if isinstance(calculator, (FileIOCalculator, GenericFileIOCalculator)):
        return True
    # Interfaces that call a program by themselves, as that of VASP, have a command.
    return not isinstance(calculator, BaseCalculator) or hasattr(calculator, "command")


def _parts(calculator: Any, depth: int = 0) -> Iterator[Any]:
    """A calculator and those that it calls: of sums, mixtures and corrections."""
    yield calculator
    if depth == MOST_NESTED:
        return
    for value in list(getattr(calculator, "__dict__", {}).values()):
        for inner in value if isinstance(value, (list, tuple)) else [value]:
            if hasattr(inner, "get_property") or type(inner).__name__ == "Mixer":
                yield from _parts(inner, depth + 1)
