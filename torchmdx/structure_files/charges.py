"""The total charge of a structure in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ase import Atoms

FORMAL = "formal_charges"  # array of a structure, [N] e
KEYS = ("charge", "total_charge")  # of a structure's info
DEFAULT = "the default"
LARGEST_ROUNDING = 1e-3  # e, in a sum of initial charges


def charge_of(atoms: Atoms, given: float | None = None) -> tuple[float, str]:
    """The total charge in e, and where it comes from.

    It is `given` (the option --charge), else the charge in the file, else the sum of formal charges, else the sum of
    initial charges, else 0. Raises ValueError for initial charges that do not add up to an integer, and TypeError or
    ValueError for a charge that is not a finite number.
    """
    from torchmdx.system import checked_charge

    if given is not None:
        return checked_charge(given), "--charge"
    for place in (atoms.info, atoms.info.get("key_value_pairs") or {}):  # the second: row of an ASE database
        for key in KEYS:
            if place.get(key) is not None:
                return checked_charge(_one(place[key])), f"{key!r} in the file"
    if atoms.has(FORMAL):
        return float(np.sum(atoms.get_array(FORMAL))), "sum of formal charges"
    if atoms.has("initial_charges"):
        total = float(atoms.get_initial_charges().sum())
        if abs(total - round(total)) > LARGEST_ROUNDING:
            raise ValueError(
                f"initial charges must add up to an integer without info['charge'], got {total:g} e; "
                "--charge sets the total charge"
            )
        return float(round(total)), "sum of initial charges"
    return 0.0, DEFAULT


def _one(value: Any) -> Any:
    """The number in an array of one number."""
    return value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
