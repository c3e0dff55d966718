"""Elements of atoms in files that have only names of atoms and residues, such as GRO."""

from __future__ import annotations

import re

# Names that mean an element wherever they occur; CA, CD, HG, NA and others are also names of atoms in proteins.
TWO_LETTERS = {"AL", "BR", "CL", "CU", "FE", "LI", "MG", "MN", "SE", "SI", "ZN"}
# Names of ions in force fields, where residue and atom have the same name.
IONS = {"SOD": "Na", "POT": "K", "CLA": "Cl", "CAL": "Ca", "LIT": "Li", "RUB": "Rb", "CES": "Cs", "BAR": "Ba"}


def element_of(name: str, residue: str) -> str | None:
    """The symbol of an element, or None. name, residue: of the atom and its residue, such as CA in ALA: carbon."""
    from ase.data import atomic_numbers

    letters = re.sub(r"[^A-Z].*", "", name.strip().lstrip("0123456789").upper())
    if not letters:
        return None
    if letters == re.sub(r"[^A-Z]", "", residue.upper()):  # an ion is a residue of its own
        symbol = IONS.get(letters, letters.capitalize())
        if atomic_numbers.get(symbol):
            return symbol
    symbol = letters.capitalize() if letters in TWO_LETTERS else letters[0]
    return symbol if atomic_numbers.get(symbol) else None


def symbol_of(text: str) -> str | None:
    """The symbol of an element as written in a file, in any case; D and T are hydrogen. None for anything else."""
    from ase.data import atomic_numbers

    symbol = {"D": "H", "T": "H"}.get(text.upper(), text.capitalize())
    return symbol if atomic_numbers.get(symbol) else None
