"""GRO files of GROMACS: every frame, with velocities and the box."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchmdx.structures.files.elements import element_of
from torchmdx.structures.units import NANOMETER

if TYPE_CHECKING:
    from ase import Atoms

FIRST_NUMBER = 20  # column where numbers begin


def frames(text: str) -> list[Atoms]:
    """The structures of a file. Raises ValueError that names the frame, counted from 1."""
    lines = text.splitlines()
    found: list[Atoms] = []
    start = 0
    while start < len(lines) and any(line.strip() for line in lines[start:]):
        try:
            count = int(lines[start + 1])
            if len(lines) < start + count + 3:
                raise ValueError(f"it must have {count} atoms and a box, but the file ends")
            found.append(_structure(lines[start + 2 : start + 2 + count], lines[start + 2 + count]))
        except (ValueError, IndexError) as error:
            raise ValueError(f"frame {len(found) + 1}: {error}") from error
        start += count + 3
    return found


def _structure(rows: list[str], box: str) -> Atoms:
    from ase import Atoms, units

    width = _width(rows)
    symbols, numbers = [], []
    for k, row in enumerate(rows):
        residue, name = row[5:10].strip(), row[10:15].strip()
        symbol = element_of(name, residue)
        if symbol is None:
            raise ValueError(f"every atom needs an element, got none for atom {k} ({name!r} of residue {residue})")
        symbols.append(symbol)
        numbers.append(_numbers(row, width))
    atoms = Atoms(symbols, NANOMETER * np.array([line[:3] for line in numbers]).reshape(-1, 3))
    if all(len(line) == 6 for line in numbers) and numbers:
        velocities = np.array([line[3:] for line in numbers])  # nm/ps
        atoms.set_velocities(velocities * (NANOMETER / 1000 / units.fs))
    if rows:
        atoms.set_array("residuenumbers", np.array([int(row[:5]) for row in rows]))
        atoms.set_array("residuenames", np.array([row[5:10].strip() for row in rows]))
        atoms.set_array("atomtypes", np.array([row[10:15].strip() for row in rows]))
    cell = _cell(box)
    if cell is not None:
        atoms.cell, atoms.pbc = cell, True
    return atoms


def _width(rows: list[str]) -> int:
    """Width of a column of positions: the distance between decimal points, which depends on the precision."""
    if not rows:
        return 8
    points = [k for k, letter in enumerate(rows[0]) if letter == "." and k >= FIRST_NUMBER]
    if len(points) < 3:
        raise ValueError(f"an atom must have three coordinates, got {rows[0]!r}")
    return points[1] - points[0]


def _numbers(row: str, width: int) -> list[float]:
    """Position in nm, then the velocity in nm/ps if there is one; both in columns of the same width."""
    columns = [row[FIRST_NUMBER + k * width : FIRST_NUMBER + (k + 1) * width].strip() for k in range(6)]
    return [float(column) for column in (columns if all(columns) else columns[:3])]


def _cell(line: str) -> np.ndarray | None:
    """Lattice vectors [3,3] in Å; None for an empty line or a box of zeros.

    The order is v1(x) v2(y) v3(z) v1(y) v1(z) v2(x) v2(z) v3(x) v3(y); the last six are optional.
    """
    values = [float(word) for word in line.split()]
    if not any(values):
        return None
    if len(values) not in (3, 9):
        raise ValueError(f"a box must have 3 or 9 numbers, got {len(values)}")
    cell = np.diag(values[:3])
    if len(values) == 9:
        cell[0, 1], cell[0, 2], cell[1, 0], cell[1, 2], cell[2, 0], cell[2, 1] = values[3:]
    return cell * NANOMETER
