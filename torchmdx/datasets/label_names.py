"""Names in files that look like those of labels, and the options that read them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from torchmdx.datasets.blocks import Keys

# Quantity: endings of the last words that name it.
ENDINGS = {
    "energy": ("energy", "energies"),
    "forces": ("forces", "force"),
    "stress": ("stress",),
    "virial": ("virial", "virials"),
}
# Words of names that are not labels of whole structures, or not labels to train on.
OTHER_WORDS = {"free", "kinetic", "formation", "binding", "interaction", "zero", "gap", "hull", "fermi", "band"}
OTHER_WORDS |= {
    "spread",
    "std",
    "error",
    "variance",
    "uncertainty",
    "per",
    "weight",
    "config",
    "old",
    "atomic",
    "local",
}
NOT_LABELS = frozenset(("energies", "stresses"))  # of atoms, in ASE


def quantity_of(name: str) -> str | None:
    """The quantity that a name such as REF_energy or dft_forces stands for; None for other names."""
    words = [word for word in re.split(r"[^a-z]+", name.lower()) if word]
    if not words or name in NOT_LABELS or not OTHER_WORDS.isdisjoint(words):
        return None
    for quantity, endings in ENDINGS.items():
        if any(word.endswith(ending) for ending in endings for word in words):
            return quantity
    return None


def by_quantity(names: Iterable[str]) -> dict[str, list[str]]:
    """The names that look like labels, sorted, by quantity."""
    found: dict[str, list[str]] = {}
    for name in sorted(names):
        quantity = quantity_of(name)
        if quantity is not None:
            found.setdefault(quantity, []).append(name)
    return {quantity: found[quantity] for quantity in ENDINGS if quantity in found}


def options(names: Mapping[str, str]) -> str:
    """How to read names by quantity: the options of the commands, and the settings of a training."""
    words = " ".join(f"--{quantity.replace('_', '-')}-key {name}" for quantity, name in names.items())
    settings = ", ".join(f"data.{quantity}_key" for quantity in names)
    return f"{words} ({settings} in the configuration of a training)"


class NoLabels(ValueError):
    """A file with values of its frames, none of which is read as a label."""


def no_labels(where: str, usual: Iterable[str], there: Iterable[str]) -> str:
    """The text of the error for a file without any label that is read."""
    shown = ", ".join(sorted(there)) or "nothing else"
    found = {quantity: names[0] for quantity, names in by_quantity(there).items()}
    if "stress" in found:
        found.pop("virial", None)
    remedy = f"read labels with {options(found or {'energy': 'NAME', 'forces': 'NAME'})}"
    return f"{where} must have labels named {', '.join(usual)}, got {shown}; {remedy}"


def unread(where: str, keys: Keys, there: Iterable[str], used: Mapping[str, str]) -> list[str]:
    """Warnings about names that look like labels of quantities whose name the caller did not give.

    Args:
        used: The name that was read, by quantity.
    """
    said = []
    for quantity, names in by_quantity(set(there) - set(used.values())).items():
        of_stress = quantity in ("stress", "virial")
        if getattr(keys, quantity) is not None or (of_stress and (keys.stress or keys.virial)):
            continue
        if quantity == "virial" and "stress" in used:
            continue
        instead = f"; {quantity} is read from {used[quantity]}" if quantity in used else ""
        verb = "is" if len(names) == 1 else "are"
        said.append(f"{', '.join(names)} of {where} {verb} not read{instead}: {options({quantity: names[0]})} reads it")
    return said
