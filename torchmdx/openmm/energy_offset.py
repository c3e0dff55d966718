"""Energies without the large constant of separate atoms, which drowns differences in logs and in single precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from openmm import unit

from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.structures.units import KJ_PER_MOL

ATOMS = "atoms"


def offset_in_ev(energy_offset: Any, potential: Potential | Ensemble, numbers: Sequence[int]) -> float:
    """The offset of `add_potential` in eV: given in kJ/mol, with a unit, or as "atoms".

    "atoms": the sum of the potential's reference energies of the atoms, for an ensemble its mean over the members.
    Raises TypeError or ValueError.
    """
    if isinstance(energy_offset, str):
        if energy_offset != ATOMS:
            raise ValueError(f"energy_offset must be in kJ/mol, a Quantity or {ATOMS!r}, got {energy_offset!r}")
        members = potential.members if isinstance(potential, Ensemble) else [potential]
        return sum(_reference(member, numbers) for member in members) / len(members)
    if unit.is_quantity(energy_offset):
        if not energy_offset.unit.is_compatible(unit.kilojoule_per_mole):
            raise TypeError(f"energy_offset must be in a unit of molar energy, got {energy_offset}")
        energy_offset = energy_offset.value_in_unit(unit.kilojoule_per_mole)
    try:
        offset = float(energy_offset)
    except (TypeError, ValueError):
        raise TypeError(f"energy_offset must be in kJ/mol, a Quantity or {ATOMS!r}, got {energy_offset!r}") from None
    if not math.isfinite(offset):
        raise ValueError(f"energy_offset must be finite, got {offset}")
    return offset * KJ_PER_MOL


def _reference(potential: Potential, numbers: Sequence[int]) -> float:
    return float(potential.reference_energies[list(numbers)].sum())
