"""Units of force, and which of them a factor between two sets of forces points to."""

from __future__ import annotations

import math

from torchmdx.structures.units import BOHR, HARTREE, KCAL_PER_MOL, KJ_PER_MOL, NANOMETER

# In eV/Å.
FORCE_UNITS = {
    "hartree/bohr": HARTREE / BOHR,
    "hartree/Å": HARTREE,
    "kcal/mol/Å": KCAL_PER_MOL,
    "kJ/mol/Å": KJ_PER_MOL,
    "kJ/mol/nm": KJ_PER_MOL / NANOMETER,
    "eV/bohr": 1 / BOHR,
    "meV/Å": 1e-3,
}
NEAR = 0.12  # relative tolerance of a factor


def mistaken_unit(ratio: float) -> str | None:
    """Which unit was mistaken for which if forces are `ratio` times what they should be; None if no unit explains it.

    For example "in hartree/bohr but read as eV/Å" for 0.0194.
    """
    if not 0 < ratio < math.inf:
        return None
    # Forces in another unit that are read as eV/Å are too large by 1 / unit.
    ways = {f"in {unit} but read as eV/Å": 1 / size for unit, size in FORCE_UNITS.items()}
    ways |= {f"in eV/Å but read as {unit}": size for unit, size in FORCE_UNITS.items()}
    text = min(ways, key=lambda way: abs(math.log(ratio / ways[way])))
    return text if abs(math.log(ratio / ways[text])) <= NEAR else None
