"""Units that a file states, as `_property_unit_dict` of extended XYZ does, against those in which it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torchmdx.datasets.units import FORCE_UNITS, Units
from torchmdx.structures.units import ENERGY_UNITS

STATED = "_property_unit_dict"
SAME = 0.01  # relative
WORDS = {"angstroms": "angstrom", "ang": "angstrom", "a": "angstrom", "å": "angstrom", "ha": "hartree", "a0": "bohr"}
WORDS |= {"ev": "ev", "rydberg": "ry", "kcal": "kcal/mol", "kj": "kj/mol"}
RYDBERG = ENERGY_UNITS["hartree"] / 2


def stated_units(info: Mapping[str, Any]) -> dict[str, str]:
    """Units by quantity, energy and forces, that a frame states; none for what is not understood."""
    value = info.get(STATED)
    if isinstance(value, str):
        try:
            value = json.loads(value.replace("'", '"'))
        except ValueError:
            return {}
    if not isinstance(value, Mapping):
        return {}
    found: dict[str, str] = {}
    for name, unit in value.items():
        quantity = next((kind for kind in ("energy", "force") if kind in str(name).lower()), None)
        if quantity is not None and isinstance(unit, str):
            found.setdefault(quantity, unit)
    return found


def contradiction(stated: Mapping[str, str], units: Units) -> str | None:
    """What a file states that is not how it is read, and the option that helps."""
    for quantity, factor, known in (
        ("energy", units.energy_factor, {**ENERGY_UNITS, "ry": RYDBERG}),
        ("force", units.force_factor, FORCE_UNITS),
    ):
        unit = stated.get(quantity)
        size = None if unit is None else _size(unit, known)
        if size is not None and abs(size / factor - 1) > SAME:
            read = units.names()[quantity]
            return f"states {quantity} in {unit} ({STATED}) and is read in {read}: give --{quantity}-unit"
    return None


def _size(unit: str, known: Mapping[str, float]) -> float | None:
    sizes = {_plain(name): size for name, size in known.items()}
    return sizes.get(_plain(unit))


def _plain(unit: str) -> str:
    """The unit in lower case, with one name for each word."""
    text = unit.lower().replace(" ", "").replace("*", "/")
    words = [WORDS.get(word, word) for word in text.replace("/mol", "@mol").split("/")]
    return "/".join(words).replace("@mol", "/mol").replace("/mol/mol", "/mol")
