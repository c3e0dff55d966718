"""The arrays of a store on disk: their types, their description, and checks of both."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.structures.system_fields import LAST_ELEMENT

DESCRIPTION = "store.json"
# Name: type on disk, shape of an entry, whether there is one for each atom (else for each frame).
Column = tuple[str, tuple[int, ...], bool]
ARRAYS: dict[str, Column] = {
    "counts": ("<i8", (), False),
    "positions": ("<f8", (3,), True),
    "atomic_numbers": ("|u1", (), True),
    "cell": ("<f8", (3, 3), False),
    "pbc": ("|u1", (3,), False),  # 0 or 1
    "charge": ("<f8", (), False),
    "energy": ("<f8", (), False),
    "forces": ("<f4", (3,), True),
    "stress": ("<f4", (3, 3), False),
    "origin_file": ("<i4", (), False),
    "origin_frame": ("<i8", (), False),
}
# Arrays that only stores with such values have.
OPTIONAL: dict[str, Column] = {
    "weight": ("<f8", (), False),
    "config_type": ("<i4", (), False),  # index in config_types of the description
    "charges": ("<f4", (), True),
    "dipole": ("<f4", (3,), False),
}
LABELS = ("energy", "forces", "stress", "charges", "dipole")
Arrays = dict[str, NDArray[Any]]


def open_arrays(path: Path, description: dict[str, Any]) -> Arrays:
    """All arrays of a store, mapped. Raises ValueError for a damaged description, and for arrays that do not fit it."""
    _require_description(description, path)
    columns = ARRAYS | {name: OPTIONAL[name] for name in description.get("optional", [])}
    arrays = {name: _mapped(path, name, column, description) for name, column in columns.items()}
    _require_whole(arrays, description, path)
    return arrays


def _mapped(path: Path, name: str, column: Column, description: dict[str, Any]) -> NDArray[Any]:
    kind, entry, of_atoms = column
    shape = (description["num_atoms"] if of_atoms else description["num_frames"], *entry)
    file = path / f"{name}.bin"
    expected = math.prod(shape) * np.dtype(kind).itemsize
    size = file.stat().st_size if file.is_file() else None
    if size != expected:
        raise ValueError(f"{file.name} of the store {str(path)!r} must have {expected} bytes, got {size}")
    if expected == 0:  # which cannot be mapped
        return np.zeros(shape, kind)
    return np.memmap(file, kind, "r", shape=shape)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _require_description(description: dict[str, Any], path: Path) -> None:
    """Raises ValueError for a description with a missing entry or one of the wrong type."""

    def element(value: Any) -> bool:
        return type(value) is int and 0 < value <= LAST_ELEMENT

    units = description.get("units")
    optional = description.get("optional", [])
    sound = {
        **{name: type(description.get(name)) is int and description[name] > 0 for name in ("num_frames", "num_atoms")},
        "labels": _texts(description.get("labels")) and set(description["labels"]) <= set(LABELS),
        "elements": isinstance(description.get("elements"), list) and all(map(element, description["elements"])),
        "units": isinstance(units, dict) and _texts(list(units.values())),
        "sources": _texts(description.get("sources")),
        "digest": isinstance(description.get("digest"), str),
        "optional": _texts(optional) and set(optional) <= set(OPTIONAL),
        "config_types": _texts(description.get("config_types", [])),
        "made_from": isinstance(description.get("made_from", {}), dict),
    }
    for name, good in sound.items():
        if not good:
            raise ValueError(f"{name} in {DESCRIPTION} of {str(path)!r} is damaged, got {description.get(name)!r:.80}")


def _require_whole(arrays: Arrays, description: dict[str, Any], path: Path) -> None:
    """Raises ValueError unless counts add up to the number of atoms and all indices of names are valid."""
    counts, atoms = arrays["counts"], description["num_atoms"]
    total = 0
    if ((counts >= 0) & (counts <= atoms)).all():
        ends = np.cumsum(counts)
        total = int(ends[-1]) if (ends >= 0).all() else 0  # negative where it overflowed
    if total != atoms:
        raise ValueError(f"counts.bin of the store {str(path)!r} must add up to {atoms} atoms: it is damaged")
    for name, listed in (("origin_file", "sources"), ("config_type", "config_types")):
        index = arrays.get(name)
        if index is not None and (index.min() < 0 or index.max() >= len(description.get(listed, []))):
            number = "its sources" if listed == "sources" else listed
            raise ValueError(f"{name}.bin of the store {str(path)!r} must number {number}: it is damaged")
