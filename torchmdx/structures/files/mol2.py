"""Tripos MOL2 files: every molecule, with partial charges and cells."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from torchmdx.structures.files.elements import TWO_LETTERS, symbol_of
from torchmdx.structures.total_charge import LARGEST_ROUNDING

if TYPE_CHECKING:
    from ase import Atoms

RECORD = "@<TRIPOS>"
NO_CHARGES = "NO_CHARGES"
CHARGE_COLUMN = 8
MOST_ROUNDING = 0.1  # e, in the sum of any number of charges


def frames(text: str) -> list[Atoms]:
    """The structures of a file. Raises ValueError that names the molecule, counted from 1."""
    molecules: list[dict[str, list[str]]] = []
    section: list[str] = []
    for line in text.splitlines():
        if line.startswith(RECORD):
            name = line.removeprefix(RECORD).strip()
            if name == "MOLECULE":
                molecules.append({})
            section = molecules[-1].setdefault(name, []) if molecules else []
        elif not line.startswith("#"):
            section.append(line)
    found = []
    for number, molecule in enumerate(molecules, 1):
        try:
            found.append(_structure(molecule))
        except (ValueError, IndexError) as error:
            raise ValueError(f"molecule {number}: {error}") from error
    return found


def _structure(molecule: dict[str, list[str]]) -> Atoms:
    from ase import Atoms

    rows = [line.split() for line in molecule.get("ATOM", []) if line.strip()]
    head = molecule["MOLECULE"]
    stated = int(head[1].split()[0])
    if len(rows) != stated:
        raise ValueError(f"it must have {stated} atoms, got {len(rows)}")
    symbols = [_symbol(row) for row in rows]
    cell = [line.split() for line in molecule.get("CRYSIN", []) if line.strip()]
    lengths = [float(value) for value in cell[0][:6]] if cell else None
    atoms = Atoms(symbols, [[float(value) for value in row[2:5]] for row in rows], cell=lengths, pbc=bool(cell))
    atoms.info["name"] = head[0].strip()
    kind = head[3].strip() if len(head) > 3 else NO_CHARGES
    charges = [float(row[CHARGE_COLUMN]) for row in rows if len(row) > CHARGE_COLUMN]
    if kind != NO_CHARGES and len(charges) == len(rows):
        _set_charge(atoms, sum(charges))
    return atoms


def _symbol(row: list[str]) -> str:
    """From the type of the atom, such as C.ar; types of force fields are no elements: ca of GAFF is carbon."""
    start = row[5].split(".")[0]
    symbol = symbol_of(start) if start == start.capitalize() or start in TWO_LETTERS else None
    if symbol is None:
        raise ValueError(
            f"every atom needs an element, got the type {row[5]!r} for atom {row[0]} ({row[1]!r}); "
            "types must be those of Sybyl, such as C.ar"
        )
    return symbol


def _set_charge(atoms: Atoms, total: float) -> None:
    """The total charge of partial charges, which have three or four digits each."""
    if abs(total - round(total)) > max(LARGEST_ROUNDING, min(5e-4 * len(atoms), MOST_ROUNDING)):
        warnings.warn(
            f"the partial charges of a MOL2 molecule must add up to an integer, got {total:g} e: they are ignored, "
            "--charge, or charge=, sets the total charge",
            stacklevel=2,
        )
    else:
        atoms.info["charge"] = round(total)
