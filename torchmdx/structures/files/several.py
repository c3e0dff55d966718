"""Several files and folders of structures, of which some may be unreadable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchmdx.structures.files.read import CIF, OWN, Record, read_records

# Of the files in a folder that are structures; others are named one by one.
ENDINGS = (
    *OWN, *CIF, ".xyz", ".extxyz", ".traj", ".vasp", ".poscar", ".xsf", ".cfg", ".gen", ".res", ".xtl", ".lmp",
)  # fmt: skip
NAMES = ("POSCAR", "CONTCAR", "geometry.in")


@dataclass(frozen=True)
class Gathered:
    """Structures with the file of each, and the reason for each file that could not be read."""

    records: list[tuple[str, Record]] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)


def files_of(given: Sequence[str]) -> list[str]:
    """The files, and in place of a folder the structure files in it, by name. Raises ValueError for one with none."""
    found: list[str] = []
    for name in given:
        if not Path(name).is_dir():
            found.append(name)
            continue
        inside = [str(path) for path in sorted(Path(name).iterdir()) if path.is_file() and _is_structure(path)]
        if not inside:
            raise ValueError(f"{name!r} must hold structure files, by their names, got none")
        found += inside
    return found


def _is_structure(path: Path) -> bool:
    """Whether the name is that of a structure file."""
    if path.name.startswith("."):
        return False
    return path.suffix.lower() in ENDINGS or path.name.startswith(NAMES)


def read_several(files: Sequence[str], index: str, charge: float | None, format: str | None) -> Gathered:
    """The structures at an index of each file. Raises as `read_records` if there is one file, or none is readable."""
    found = Gathered()
    for file in files:
        try:
            found.records.extend((file, record) for record in read_records(file, index, charge, format))
        except (ValueError, OSError) as error:
            if len(files) == 1:
                raise
            found.unreadable[file] = str(error)
    if not found.records:
        raise ValueError(f"none of {len(files)} files could be read: {next(iter(found.unreadable.values()))}")
    return found
