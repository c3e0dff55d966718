"""Suggestions for names of potentials that other packages have: one made for structures of the same kind."""

from __future__ import annotations

MATERIALS, MOLECULES = "TensorNet-PES-MatPES-PBE-2025.2", "organic-1"
# Beginnings of names in lower case. The longest that fits decides.
FAMILIES = {
    MATERIALS: (
        "mace", "mace-mp", "mace-mpa", "mace-omat", "mace-matpes", "medium-mpa", "small", "medium", "large", "m3gnet",
        "chgnet", "matgl", "tensornet-matpes", "orb", "mattersim", "sevennet", "7net", "eqv2", "esen", "uma", "grace",
        "alignn", "allegro", "nequip", "matpes", "pet-mad", "fairchem", "dpa",
    ),
    MOLECULES: (
        "mace-off", "mace-omol", "mace-polar", "ani", "aimnet", "aceff", "orb-v3-conservative-omol", "so3lr", "fennix",
        "xtb", "gfn",
    ),
}  # fmt: skip
KINDS = {MATERIALS: "crystals and surfaces", MOLECULES: "molecules"}


def like(name: str) -> str | None:
    """The potential for the structures that a name's family is for, with what it is for; None for no known family."""
    short = name.lower().rsplit("/", 1)[-1].replace("_", "-")
    fitting = [(start, ours) for ours, starts in FAMILIES.items() for start in starts if short.startswith(start)]
    if not fitting:
        return None
    _, ours = max(fitting, key=lambda pair: len(pair[0]))
    return f"{ours!r}, for {KINDS[ours]}"
