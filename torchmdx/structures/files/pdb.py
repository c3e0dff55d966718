"""PDB files: every model, with formal charges; alternate locations are left out."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from torchmdx.structures.files.elements import element_of, symbol_of
from torchmdx.structures.total_charge import FORMAL

if TYPE_CHECKING:
    from ase import Atoms

ATOMS = ("ATOM  ", "HETATM")
NAME = slice(12, 16)
PLACEHOLDER = (1.0, 1.0, 1.0, 90.0, 90.0, 90.0)  # of a structure that is no crystal
DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass
class PdbModel:
    """Lines of the atoms of one model, without alternate locations, and the cell parameters (Å, degrees)."""

    cell: tuple[float, ...] | None
    lines: list[str] = field(default_factory=list)
    num_alternates: int = 0


def frames(text: str) -> list[Atoms]:
    """The structures of a file. Raises ValueError that names the atom."""
    models = list(_models(text))
    left_out = sum(model.num_alternates for model in models)
    if left_out:
        warnings.warn(
            f"the PDB file has alternate locations: the first of each atom is read, {left_out} others are left out",
            stacklevel=2,
        )
    return [_structure(model) for model in models]


def with_unique_names(text: str) -> tuple[str, int]:
    """The file with other names for atoms whose names repeat within a residue, and the number of such atoms.

    The new names are the element and a number. Elements are filled in where they are missing.
    """
    lines = text.splitlines()
    for k, line in enumerate(lines):
        if line.startswith(ATOMS):
            lines[k] = f"{line[:76]:<76}{_symbol(line, k).upper():>2}{line[78:]}"
    num_renamed = 0
    for residue in _residues(lines):
        names = Counter(lines[k][NAME] for k in residue)
        repeated = [k for k in residue if names[lines[k][NAME]] > 1]
        num_renamed += len(repeated)
        taken = {name.strip() for name in names}
        counts: Counter[str] = Counter()
        for k in repeated:
            symbol = lines[k][76:78].strip()
            name = _next_name(symbol, counts, taken)
            lines[k] = lines[k][:12] + (name.ljust(4) if len(name + symbol) > 4 else f" {name:<3}") + lines[k][16:]
    return "\n".join(lines) + "\n", num_renamed


def without_alternates(text: str) -> str:
    """The file without the lines of alternate locations."""
    kept = []
    first: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith(("MODEL", "END")):
            first = {}
        elif line.startswith(ATOMS) and first.setdefault(_key(line), line[16]) != line[16]:
            continue
        kept.append(line)
    return "\n".join(kept) + "\n"


def _models(text: str) -> Iterator[PdbModel]:
    """Models end with ENDMDL, END (also between models, as CP2K and VMD write) or the next MODEL."""
    cell: tuple[float, ...] | None = None
    model = PdbModel(None)
    first: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(("END", "MODEL")):
            if model.lines:
                yield model
            model, first = PdbModel(cell), {}
        elif line.startswith("CRYST1"):
            cell = model.cell = _cell(line, number)
        elif line.startswith(ATOMS):
            if first.setdefault(_key(line), line[16:17]) != line[16:17]:
                model.num_alternates += 1
            else:
                model.lines.append(line)
    if model.lines:
        yield model


def _key(line: str) -> str:
    """Name, residue and chain of an atom, without its alternate location."""
    return line[12:16] + line[17:27]


def _residues(lines: list[str]) -> Iterator[list[int]]:
    """Numbers of the lines of each residue: consecutive atoms of one residue name, chain and number."""
    residue: list[int] = []
    for k, line in enumerate(lines):
        atom = line.startswith(ATOMS)
        if residue and (line.startswith(("TER", "END", "MODEL")) or (atom and lines[residue[0]][17:27] != line[17:27])):
            yield residue
            residue = []
        if atom:
            residue.append(k)
    if residue:
        yield residue


def _next_name(symbol: str, counts: Counter[str], taken: set[str]) -> str:
    """The next free name of at most four characters; beyond C999 a number to base 36."""
    while True:
        counts[symbol] += 1
        name = f"{symbol}{counts[symbol]}"
        if len(name) > 4:
            counts[""] += 1
            name = "".join(DIGITS[counts[""] // 36**power % 36] for power in (3, 2, 1, 0))
        if name not in taken:
            taken.add(name)
            return name


def _cell(line: str, number: int) -> tuple[float, ...] | None:
    columns = (6, 15, 24, 33, 40, 47, 54)
    try:
        found = tuple(float(line[a:b]) for a, b in pairwise(columns))
    except ValueError as error:
        raise ValueError(f"line {number} must have three lengths and three angles, got {line!r}") from error
    return None if found == PLACEHOLDER or not all(found) else found


def _structure(model: PdbModel) -> Atoms:
    from ase import Atoms

    symbols = [_symbol(line, k) for k, line in enumerate(model.lines)]
    positions = np.array([_position(line, k) for k, line in enumerate(model.lines)])
    atoms = Atoms(symbols, positions, cell=model.cell, pbc=model.cell is not None)
    atoms.set_array("atomtypes", np.array([line[NAME].strip() for line in model.lines]))
    atoms.set_array("residuenames", np.array([line[17:21].strip() for line in model.lines]))
    numbers = [line[22:26].strip() for line in model.lines]
    if all(re.fullmatch(r"-?\d+", number) for number in numbers):  # large files count in hexadecimal
        atoms.set_array("residuenumbers", np.array([int(number) for number in numbers]))
    charges = [_formal_charge(line[78:80]) for line in model.lines]
    if any(charges):
        atoms.set_array(FORMAL, np.array(charges))
    return atoms


def _symbol(line: str, number: int) -> str:
    name, residue = line[NAME].strip(), line[17:21].strip()
    symbol = symbol_of(line[76:78].strip()) or element_of(name, residue)
    if symbol is None:
        raise ValueError(
            f"every atom needs an element, got none for atom {number} ({name!r} of residue {residue} "
            f"{line[22:26].strip()}); a PDB file has it in columns 77-78"
        )
    return symbol


def _position(line: str, number: int) -> list[float]:
    try:
        return [float(line[30:38]), float(line[38:46]), float(line[46:54])]
    except ValueError as error:
        raise ValueError(f"the position of atom {number} must be in columns 31-54, got {line[30:54]!r}") from error


def _formal_charge(text: str) -> int:
    """A charge as 2+ or 1-; some programs write +2."""
    found = re.fullmatch(r"(\d)([+-])|([+-])(\d)", text.strip())
    if found is None:
        return 0
    sign, size = found.group(2) or found.group(3), found.group(1) or found.group(4)
    return int(sign + size)
