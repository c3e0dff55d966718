"""LAMMPS data files and dumps, whose types of atoms are elements only where the file says so."""

from __future__ import annotations

import io
import re
import warnings
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ase import Atoms

BOX = re.compile(r"^\s*\S+\s+\S+\s+xlo\s+xhi", re.MULTILINE)
UNITS = ("metal", "real")  # those in Å
MASS_ERROR = 0.2  # amu
COLUMNS = "ITEM: ATOMS"


def is_data(text: str) -> bool:
    """Whether a text is a LAMMPS data file."""
    return BOX.search(text) is not None and re.search(r"^\s*Atoms\b", text, re.MULTILINE) is not None


def frames(text: str) -> list[Atoms]:
    """The structure of a data file, periodic in all directions. Raises ValueError for types without an element."""
    from ase.data import atomic_numbers
    from ase.io.lammpsdata import read_lammps_data

    stated = re.search(r"units\s*=\s*(\w+)", text.splitlines()[0])
    if stated and stated.group(1) not in UNITS:
        raise ValueError(f"the units of a LAMMPS data file must be {' or '.join(UNITS)}, got {stated.group(1)}")
    if not stated and _section(text, "Velocities"):
        warnings.warn(
            f"velocities of a LAMMPS data file whose first line does not state its units are read as {UNITS[0]}, Å/ps",
            stacklevel=2,
        )
    elements = {kind: atomic_numbers[symbol] for kind, symbol in _elements(text).items()}
    with io.StringIO(text) as file:
        return [read_lammps_data(file, Z_of_type=elements, units=stated.group(1) if stated else UNITS[0])]


def _elements(text: str) -> dict[int, str]:
    """The element of each type: its label, the comment of its mass, or the element of that mass."""
    labels = dict(_section(text, "Atom Type Labels"))
    found = {}
    masses = _section(text, "Masses")
    if not masses:
        raise ValueError("a LAMMPS data file needs the section Masses, which tells elements of types, got none")
    for kind, rest in masses:
        mass, _, comment = rest.partition("#")
        names = [*comment.split(), *labels.get(kind, "").split()]
        symbol = next((name for name in names if _has_mass(name, float(mass))), None) or _of_mass(float(mass))
        if symbol is None:
            raise ValueError(f"every type needs the mass of an element, got {float(mass):g} amu for type {kind}")
        found[int(kind)] = symbol
    return found


def _section(text: str, name: str) -> list[tuple[str, str]]:
    """(first word, rest) of the lines of a section."""
    part = re.search(rf"^\s*{name}\s*(?:#.*)?\n\s*\n((?:[ \t]*\S.*\n?)+)", text, re.MULTILINE)
    rows = [line.split(None, 1) for line in part.group(1).splitlines()] if part else []
    return [(row[0], row[1]) for row in rows if len(row) == 2]


def _has_mass(symbol: str, mass: float) -> bool:
    from ase.data import atomic_masses, atomic_numbers

    number = atomic_numbers.get(symbol, 0)
    return number > 0 and abs(float(atomic_masses[number]) - mass) < MASS_ERROR


def _of_mass(mass: float) -> str | None:
    """The element of the nearest mass; deuterium is hydrogen."""
    from ase.data import atomic_masses, chemical_symbols

    if abs(mass - 2.014) < 0.01:
        return "H"
    errors = np.abs(np.asarray(atomic_masses[1:], dtype=np.float64) - mass)
    place = int(errors.argmin())
    return chemical_symbols[place + 1] if errors[place] < MASS_ERROR else None


def require_elements(text: str) -> None:
    """Raises ValueError for a dump in text without elements, whose types ASE would take for atomic numbers."""
    start = text.find(COLUMNS)
    columns = text[start:].split("\n", 1)[0].removeprefix(COLUMNS).split() if start >= 0 else []
    if start >= 0 and "element" not in columns:
        raise ValueError(
            f"a LAMMPS dump needs the column element, got {' '.join(columns)}: add `element` to the command dump and "
            "the elements with `dump_modify ID element ...`"
        )
