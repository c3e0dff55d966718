"""Metadata of a potential: name, description, licence and training data."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from torchmdx.runtime.damaged_file import parse_json
from torchmdx.structures.system_fields import LAST_ELEMENT


@dataclass(frozen=True, kw_only=True)
class Card:
    """Metadata of a potential, stored in checkpoints. Checked on construction.

    Attributes:
        elements: Atomic numbers in the training data; charges: total charges in the training data, e; None if unknown.
            Other elements are refused, because the network has random, untrained weights for them.
        closed_shell: All training structures had an even number of electrons.
        periodic: Whether some of them were periodic; None if unknown.
    """

    name: str = ""
    description: str = ""
    licence: str = ""
    elements: tuple[int, ...] | None = None
    charges: tuple[float, ...] | None = None
    closed_shell: bool = False
    periodic: bool | None = None

    def __post_init__(self) -> None:
        for field in ("name", "description", "licence"):
            if not isinstance(getattr(self, field), str):
                raise ValueError(f"{field} of a potential must be text, got {getattr(self, field)!r}")
        if not isinstance(self.closed_shell, bool):
            raise ValueError(f"closed_shell of a potential must be True or False, got {self.closed_shell!r}")
        if not isinstance(self.periodic, bool | None):
            raise ValueError(f"periodic of a potential must be True, False or None, got {self.periodic!r}")
        for field in ("elements", "charges"):
            if not isinstance(getattr(self, field), tuple | None):
                raise ValueError(f"{field} of a potential must be several numbers, got {getattr(self, field)!r}")
        if self.elements is not None:
            whole = all(type(number) is int and 1 <= number <= LAST_ELEMENT for number in self.elements)
            if not self.elements or not whole:
                raise ValueError(
                    f"elements of a potential must be atomic numbers from 1 to {LAST_ELEMENT}, got {self.elements!r}"
                )
            object.__setattr__(self, "elements", tuple(sorted(set(self.elements))))
        if self.charges is not None:
            if not self.charges or not all(type(c) in (int, float) and math.isfinite(c) for c in self.charges):
                raise ValueError(f"charges of a potential must be finite numbers, got {self.charges!r}")
            object.__setattr__(self, "charges", tuple(sorted({float(charge) for charge in self.charges})))

    def __bool__(self) -> bool:
        """Whether any field is set."""
        return self != Card()

    @property
    def title(self) -> str:
        """Name of the potential in messages."""
        return self.name or "this potential"

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Card:
        """The card that `to_text` wrote. Ignores unknown fields, which a later version may have added.

        Raises:
            ValueError: For any other text.
        """
        try:
            values = parse_json(text)
        except ValueError:
            values = None
        if not isinstance(values, dict):
            raise ValueError(f"the card of a potential must be a JSON object, got {text[:80]!r}")
        known: dict[str, Any] = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
        for name in ("elements", "charges"):
            if isinstance(known.get(name), list):
                known[name] = tuple(known[name])
        return cls(**known)

    def require_elements(self, atomic_numbers: list[int]) -> None:
        """Raises ValueError that names every element outside the training data, with its first atom."""
        if self.elements is None:
            return
        first: dict[int, int] = {}
        for atom, number in enumerate(atomic_numbers):
            if number not in self.elements:
                first.setdefault(number, atom)
        if first:
            found = ", ".join(f"{symbols([number])} (atom {atom})" for number, atom in first.items())
            raise ValueError(f"{self.title} does not know {found}: it was trained on {symbols(self.elements)}")

    def doubts(self, atomic_numbers: Iterable[int], charge: float, periodic: bool = False) -> list[str]:
        """Reasons, apart from elements, why a structure may be outside the training data.

        Args:
            periodic: Whether it is periodic in any direction.
        """
        found = []
        if periodic and self.periodic is False:
            found.append(
                f"{self.title} was trained on molecules in vacuum, without any periodic structure, got a periodic one: "
                "compare densities and energies of such structures with a reference before use"
            )
        if self.charges is not None and charge not in self.charges:
            known = ", ".join(f"{value:+g}" if value else "0" for value in self.charges)
            found.append(f"{self.title} was trained on total charges of {known} e, got {charge:+g} e")
        electrons = sum(atomic_numbers) - charge
        # The number of electrons in a unit cell of a crystal depends on the cell that is chosen.
        if self.closed_shell and electrons % 2 and not (periodic and self.periodic):
            found.append(
                f"{self.title} was trained on closed shells, got {electrons:g} electrons at a total charge of "
                f"{charge:+g} e: is the charge right?"
            )
        return found


def symbols(atomic_numbers: Iterable[int]) -> str:
    """Symbols of elements, as "H, C, N"."""
    from ase.data import chemical_symbols  # takes half a second, and only messages need it

    return ", ".join(chemical_symbols[number] for number in atomic_numbers)
