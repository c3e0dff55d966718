"""mmCIF files of molecules: every model, with formal charges; alternate locations are left out."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING

import numpy as np

from torchmdx.structures.files.elements import symbol_of
from torchmdx.structures.total_charge import FORMAL

if TYPE_CHECKING:
    from ase import Atoms

# A quote ends a value only before a blank, as in 'O5''.
VALUE = re.compile(r"'(?:[^']|'(?=\S))*'(?=\s|$)|\"(?:[^\"]|\"(?=\S))*\"(?=\s|$)|\S+")
TABLE = "_atom_site."
UNKNOWN = (".", "?", "")
CELL = ("length_a", "length_b", "length_c", "angle_alpha", "angle_beta", "angle_gamma")

Row = dict[str, str]


def is_mmcif(text: str) -> bool:
    """Whether a CIF file is mmCIF; crystals have `_atom_site_...`."""
    return TABLE in text


def frames(text: str) -> list[Atoms]:
    """The structures of a file. Raises ValueError that names the atom."""
    models: dict[str, list[Row]] = {}
    first: dict[tuple[str, ...], str] = {}
    left_out = 0
    for row in _rows(text.splitlines()):
        model, place = row.get("pdbx_PDB_model_num", "1"), row.get("label_alt_id", ".")
        key = (model, *(_either(row, name) for name in ("asym_id", "seq_id", "comp_id", "atom_id")), _insertion(row))
        if first.setdefault(key, place) != place:
            left_out += 1
        else:
            models.setdefault(model, []).append(row)
    if left_out:
        warnings.warn(
            f"the mmCIF file has alternate locations: the first of each atom is read, {left_out} others are left out",
            stacklevel=2,
        )
    cell = _cell(text)
    return [_structure(rows, cell) for rows in models.values()]


def _rows(lines: list[str]) -> list[Row]:
    """The rows of the table of atoms."""
    names: list[str] = []
    values: list[str] = []
    for line in lines:
        if line.startswith(TABLE):
            name, *value = VALUE.findall(line)
            names.append(name.removeprefix(TABLE))
            values += value  # of the only atom, without a loop
        elif names and line.startswith(("#", "_", "loop_", "data_")):
            break
        elif names:
            values += VALUE.findall(line)
    if names and len(values) % len(names):
        raise ValueError(f"the table of atoms must have {len(names)} values for each atom, got {len(values)} in total")
    plain = [re.sub(r"^(['\"])(.*)\1$", r"\2", value) for value in values]
    width = len(names)
    return [dict(zip(names, plain[k : k + width], strict=True)) for k in range(0, len(plain), max(width, 1))]


def _either(row: Row, name: str) -> str:
    """A column as the authors name it, else as the data bank does."""
    found = row.get(f"auth_{name}", ".")
    return row.get(f"label_{name}", ".") if found in UNKNOWN else found


def _insertion(row: Row) -> str:
    return row.get("pdbx_PDB_ins_code", "?")


def _structure(rows: list[Row], cell: tuple[float, ...] | None) -> Atoms:
    from ase import Atoms

    symbols = []
    for k, row in enumerate(rows):
        symbol = symbol_of(row.get("type_symbol", ""))
        if symbol is None:
            raise ValueError(
                f"every atom needs an element, got none for atom {k} ({_either(row, 'atom_id')!r} of residue "
                f"{_either(row, 'comp_id')} {_either(row, 'seq_id')}); an mmCIF file has it in _atom_site.type_symbol"
            )
        symbols.append(symbol)
    try:
        positions = np.array([[float(row[f"Cartn_{axis}"]) for axis in "xyz"] for row in rows])
    except KeyError as error:
        raise ValueError(f"the table of atoms needs the column {error.args[0]}") from error
    atoms = Atoms(symbols, positions, cell=cell, pbc=cell is not None)
    atoms.set_array("atomtypes", np.array([_either(row, "atom_id") for row in rows]))
    atoms.set_array("residuenames", np.array([_either(row, "comp_id") for row in rows]))
    charges = [row.get("pdbx_formal_charge", "?") for row in rows]
    formal = np.array([0 if charge in UNKNOWN else int(charge) for charge in charges])
    if formal.any():
        atoms.set_array(FORMAL, formal)
    return atoms


def _cell(text: str) -> tuple[float, ...] | None:
    found = {}
    for name in CELL:
        value = re.search(rf"^_cell\.{name}\s+(\S+)", text, re.MULTILINE)
        if value is None or value.group(1) in UNKNOWN:
            return None
        found[name] = float(value.group(1).split("(")[0])  # without an uncertainty in parentheses
    return tuple(found.values())
