"""Energies without the large constant of separate atoms, which drowns differences in logs and in single precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openmm import unit

from torchmdx.checkpoints.prepare import PotentialSource
from torchmdx.checkpoints.save_load import read_any
from torchmdx.models.ensemble import Ensemble, members_of
from torchmdx.models.potential import Potential
from torchmdx.structures.units import KJ_PER_MOL

ATOMS, TOTAL = "atoms", "total"


def offset_in_ev(
    energy_offset: Any, potential: Potential | Ensemble, numbers: Sequence[int], source: PotentialSource = None
) -> float:
    """The offset of `add_potential` in eV: given in kJ/mol, with a unit, or as "atoms" or "total".

    "atoms": the sum of the potential's reference energies of the atoms, for an ensemble its mean over the members.
    "total": minus the reference energies that the file, `source`, contains but disables, so that they are included.
    Raises TypeError or ValueError.
    """
    if isinstance(energy_offset, str):
        if energy_offset == ATOMS:
            return _references(potential, numbers)
        if energy_offset == TOTAL:
            return _references(potential, numbers) - _total_references(source, numbers)
        raise ValueError(f"energy_offset must be in kJ/mol, a Quantity, {ATOMS!r} or {TOTAL!r}, got {energy_offset!r}")
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


def _references(potential: Potential | Ensemble, numbers: Sequence[int]) -> float:
    members = members_of(potential)
    return sum(float(member.reference_energies[list(numbers)].sum()) for member in members) / len(members)


def _total_references(source: PotentialSource, numbers: Sequence[int]) -> float:
    """The same with those that the files disable. Raises ValueError if there are none."""
    if not isinstance(source, (str, Path)) and source is not None:
        raise ValueError(f'energy_offset="total" needs a potential given as a file, got {type(source).__name__}')
    found = read_any(source, total_energy=True)
    potentials = [reading.potential for reading in (found if isinstance(found, list) else [found])]
    if not any(potential.reference_energies.any() for potential in potentials):
        raise ValueError('energy_offset="total" needs a file with reference energies of atoms, got one without')
    return sum(_references(potential, numbers) for potential in potentials) / len(potentials)
