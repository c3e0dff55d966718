"""The elements of i-PI's atoms against those of a template: `ffdirect` gives positions alone to its drivers."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from ase.data import atomic_numbers, chemical_symbols

ISOTOPES = {"D": 1, "T": 1}


def require_species(names: Sequence[str], numbers: Sequence[int]) -> None:
    """Raises ValueError if i-PI's names of atoms are not, in their order, elements with these atomic numbers.

    D and T are hydrogen. Warns of names that are no elements, which cannot be compared.
    """
    if len(names) != len(numbers):
        return  # said where structures are evaluated
    unknown = set()
    for place, (name, number) in enumerate(zip(names, numbers, strict=True)):
        found = ISOTOPES.get(name, atomic_numbers.get(name))
        if found is None:
            unknown.add(name)
        elif found != number:
            raise ValueError(
                f"i-PI's atoms must be those of the template in its order, but atom {place} is {name} in i-PI and "
                f"{chemical_symbols[number]} in the template"
            )
    if unknown:
        shown = ", ".join(map(repr, sorted(unknown)[:5]))
        warnings.warn(f"i-PI's names {shown} are no elements, and were not compared with the template", stacklevel=2)


def check_species(driver_class: type[Any]) -> None:
    """Makes i-PI give the names of a system's atoms to `require_names` of every driver of this class that it uses."""
    from ipi.engine.forces import Forces

    original = Forces.bind
    if driver_class in getattr(original, "drivers", ()):
        return

    @functools.wraps(original)
    def bind(self: Any, beads: Any, cell: Any, components: Any, forcefields: Any, *others: Any, **named: Any) -> Any:
        used = {component.ffield for component in components} & set(forcefields)
        drivers: list[Any] = [driver for name in used for driver in _drivers(forcefields[name])]
        for driver in drivers:
            if isinstance(driver, driver_class):
                driver.require_names([str(name) for name in beads.names])
        return original(self, beads, cell, components, forcefields, *others, **named)

    bind.drivers = (driver_class, *getattr(original, "drivers", ()))  # type: ignore[attr-defined]
    Forces.bind = bind


def _drivers(forcefield: Any) -> Iterator[Any]:
    """Of a force field, and of those that it combines."""
    yield getattr(forcefield, "driver", None)
    for inner in (*getattr(forcefield, "fflist", ()), getattr(forcefield, "ff", None)):
        if inner is not None:
            yield from _drivers(inner)
