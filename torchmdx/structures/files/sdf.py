"""SDF and MOL files (MDL molfiles V2000 and V3000): every record, with formal charges and data items."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from torchmdx.structures.files.elements import symbol_of
from torchmdx.structures.total_charge import FORMAL

if TYPE_CHECKING:
    from ase import Atoms

HEADER_LINES = 3
CODES = {1: 3, 2: 2, 3: 1, 5: -1, 6: -2, 7: -3}  # of charges in the lines of atoms; 4 is a radical

Atom = tuple[str, tuple[float, float, float], int]  # symbol, position in Å, formal charge in e


def frames(text: str) -> list[Atoms]:
    """The structures of a file. Raises ValueError that names the record, counted from 1."""
    found = []
    for number, lines in enumerate(_records(text), 1):
        try:
            found.append(_structure(lines))
        except (ValueError, IndexError) as error:
            raise ValueError(f"record {number}: {error}") from error
    return found


def _records(text: str) -> Iterator[list[str]]:
    record: list[str] = []
    for line in text.splitlines():
        if line.startswith("$$$$"):
            yield record
            record = []
        else:
            record.append(line)
    if any(line.strip() for line in record):
        yield record


def _structure(lines: list[str]) -> Atoms:
    from ase import Atoms

    if len(lines) <= HEADER_LINES:
        raise ValueError(f"it must have at least {HEADER_LINES + 1} lines, got {len(lines)}")
    end = next((k for k, line in enumerate(lines) if line.startswith("M  END")), len(lines))
    found = _v3000(lines[:end]) if "V3000" in lines[HEADER_LINES] else _v2000(lines[:end])
    positions = np.array([position for _, position, _ in found]).reshape(-1, 3)
    atoms = Atoms([symbol for symbol, _, _ in found], positions, info=_items(lines[end + 1 :]))
    charges = [charge for _, _, charge in found]
    if any(charges):
        atoms.set_array(FORMAL, np.array(charges))
    if lines[1][20:22] == "2D" and len(atoms) > 3 and not positions[:, 2].any():
        warnings.warn("an SDF record holds the 2D coordinates of a drawing, not a structure", stacklevel=2)
    return atoms


def _v2000(lines: list[str]) -> list[Atom]:
    count = int(lines[HEADER_LINES][:3])
    found = []
    rows = lines[HEADER_LINES + 1 : HEADER_LINES + 1 + count]
    if len(rows) < count:
        raise ValueError(f"it must have {count} lines of atoms, got {len(rows)}")
    for number, row in enumerate(rows, 1):
        words = row.split()
        symbol = row[31:34].strip()
        try:  # fixed columns; some programs separate by single blanks instead
            position = float(row[:10]), float(row[10:20]), float(row[20:30])
        except ValueError:
            position = float(words[0]), float(words[1]), float(words[2])
        if symbol_of(symbol) is None:
            symbol = words[3]
        code = row[36:39].strip()
        found.append((_known(symbol, number), position, CODES.get(int(code) if code.isdigit() else 0, 0)))
    properties = [line for line in lines if line.startswith(("M  CHG", "M  RAD"))]
    if properties:  # they replace the charges in the lines of atoms
        charges = [0] * count
        for line in properties:
            if line.startswith("M  CHG"):
                numbers = [int(word) for word in line[9:].split()]
                for atom, charge in zip(numbers[::2], numbers[1::2], strict=True):
                    charges[atom - 1] = charge
        found = [(symbol, position, charges[k]) for k, (symbol, position, _) in enumerate(found)]
    return found


def _v3000(lines: list[str]) -> list[Atom]:
    text = "\n".join(lines).replace("-\nM  V30 ", "")  # a hyphen at the end continues a line
    block = re.search(r"^M  V30 BEGIN ATOM\n(.*?)^M  V30 END ATOM", text, re.MULTILINE | re.DOTALL)
    if block is None:
        raise ValueError("a V3000 record must have a block of atoms, got none")
    found = []
    for number, row in enumerate(block.group(1).splitlines(), 1):
        _, symbol, x, y, z, *rest = row.removeprefix("M  V30 ").split()
        charge = next((int(word[4:]) for word in rest if word.upper().startswith("CHG=")), 0)
        found.append((_known(symbol, number), (float(x), float(y), float(z)), charge))
    return found


def _known(symbol: str, number: int) -> str:
    known = symbol_of(symbol)
    if known is None:
        raise ValueError(f"every atom needs an element, got {symbol!r} for atom {number}")
    return known


def _items(lines: list[str]) -> dict[str, Any]:
    """Data items (`> <name>`, then values up to an empty line); numbers are converted."""
    items: dict[str, Any] = {}
    name = None
    for line in lines:
        title = re.match(r">.*<(.+)>", line)
        if title:
            name = title.group(1)
            items[name] = []
        elif not line.strip():
            name = None
        elif name is not None:
            items[name].append(line.strip())
    return {name: _value("\n".join(text)) for name, text in items.items() if text}


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
