"""Folders of calculators that work through files, as ASE's FileIOCalculator does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST_NESTED = 4  # calculators in calculators: a correction of a mixture of a program


def use_folder(calculator: Any, folder: Path) -> None:
    """Gives a calculator, and those in it, a folder for its files, which is created.

    A calculator that was made for a directory other than the working directory gets a folder of the same name there.
    Two parts of a calculator never share a folder. Calculators without files are left alone.
    """
    found = [part for part in _parts(calculator) if _works_through_files(part)]
    for number, part in enumerate(found):
        chosen = Path(part.directory)
        name = folder.name if len(found) == 1 else f"{folder.name}-{number}"
        place = (folder.parent if chosen == Path() else chosen) / name
        place.mkdir(parents=True, exist_ok=True)
        part.directory = type(part.directory)(place.resolve())


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
