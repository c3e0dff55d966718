"""The rule for the total charge of a structure of ASE, the same wherever one enters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ase import Atoms

FORMAL = "formal_charges"  # array of a structure, [N] e
KEYS = ("charge", "total_charge")  # of a structure's info
ROW = "key_value_pairs"  # of a row of an ASE database, in info
DEFAULT = "the default"
LARGEST_ROUNDING = 1e-2  # e, in a sum of initial charges, such as those of a force field


def charge_of(atoms: Atoms, given: float | None = None) -> tuple[float, str]:
    """The total charge in e, and where it comes from.

    It is `given` (the option --charge), else the charge in the file or in `atoms.info`, else the sum of formal charges,
    else the sum of initial charges, else 0.

    Raises:
        ValueError: For entries that differ and for initial charges that do not add up to an integer.
        TypeError: For a charge that is not a finite number.
        ValueError: For a charge that is not a finite number.
    """
    if given is not None:
        return checked_charge(given), "--charge"
    stated = stated_charge(atoms.info, atoms.info.get(ROW) or {})
    if stated is not None:
        return stated
    if atoms.has(FORMAL):
        return float(np.sum(atoms.get_array(FORMAL))), "sum of formal charges"
    if atoms.has("initial_charges"):
        total = float(atoms.get_initial_charges().sum())
        if abs(total - round(total)) > LARGEST_ROUNDING:
            raise ValueError(
                f"initial charges must add up to an integer without info['charge'], got {total:g} e; "
                "--charge, or charge=, sets the total charge"
            )
        return float(round(total)), "sum of initial charges"
    return 0.0, DEFAULT


def stated_charge(*places: Mapping[str, Any]) -> tuple[float, str] | None:
    """The charge that entries under KEYS state, and where; None without any. Raises as `charge_of`."""
    found: list[tuple[float, str]] = []
    for place in places:
        for key in KEYS:
            if place.get(key) is not None:
                found.append((checked_charge(_one(place[key])), f"{key!r} in the file"))
    for value, where in found[1:]:
        if value != found[0][0]:
            first, other = (text.removesuffix(" in the file") for text in (found[0][1], where))
            raise ValueError(
                f"entries of a structure must state one total charge, got {first} {found[0][0]:+g} and {other} "
                f"{value:+g}; --charge, or charge=, sets it"
            )
    return found[0] if found else None


def set_charge(atoms: Atoms, charge: float) -> None:
    """Stores a total charge as `atoms.info["charge"]`, and removes entries that differ from it."""
    for place in (atoms.info, atoms.info.get(ROW) or {}):
        for key in KEYS:
            if place.get(key) is not None and _differs(place[key], charge):
                del place[key]
    atoms.info["charge"] = int(charge) if float(charge).is_integer() else charge


def checked_charge(charge: Any) -> float:
    """A total charge as a finite number; raises TypeError or ValueError."""
    try:
        number = float(charge)
    except (TypeError, ValueError) as error:
        raise TypeError(f"charge must be a number of elementary charges, got {charge!r}") from error
    if not np.isfinite(number):
        raise ValueError(f"charge must be finite, got {charge!r}")
    return number


def _differs(value: Any, charge: float) -> bool:
    try:
        return checked_charge(_one(value)) != charge
    except (TypeError, ValueError):
        return True


def _one(value: Any) -> Any:
    """The number in an array of one number."""
    return value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
