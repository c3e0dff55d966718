"""The total charge of a potential's atoms: as given, or that of the force field."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import openmm

from torchmdx.openmm.atoms import charge_in_e

AUTO = "auto"
TOLERANCE = 0.01  # e; files round charges


def charge_of(system: openmm.System, atoms: Iterable[int] | None, charge: Any) -> float:
    """The charge in e of a region, None for all particles, of a System that may have a force field for it.

    Raises ValueError for another charge than a sum that is a whole number, and for "auto" with a sum that is not.
    TypeError as `charge_in_e`.

    Args:
        charge: In e or with a unit, or "auto" for the sum of the MM charges, 0 without any.
    """
    total = mm_charge(system, range(system.getNumParticles()) if atoms is None else atoms)
    is_whole = total is not None and abs(total - round(total)) <= TOLERANCE
    if not (isinstance(charge, str) and charge == AUTO):
        given = charge_in_e(charge)
        if total is not None and is_whole and abs(given - round(total)) > TOLERANCE:
            raise ValueError(
                f"charge must be that of the force field, whose charges of these atoms add up to {total:.4f} e, got "
                f"{given:g} e: leave it out, or change one of them"
            )
        return given
    if total is None:
        return 0.0
    if not is_whole:
        raise ValueError(
            f"charge must be given in e where the MM charges of these atoms, {total:.4f} e, are not within {TOLERANCE} "
            f"of a whole number, as in a region that cuts bonds: the total charge of the region with its link atoms, "
            f"such as charge={round(total)}"
        )
    return float(round(total))


def mm_charge(system: openmm.System, atoms: Iterable[int]) -> float | None:
    """The sum of the MM charges of these particles in e; None if no force has charges for them.

    They are those of a NonbondedForce at the default values of its global parameters. Where that has none, they are
    those of a CustomNonbondedForce with a parameter "charge": alchemical systems move charges there.
    """
    found = list(_charges(system))
    charges = [next((own[index] for own in found if own[index]), 0.0) for index in sorted(atoms)]
    return round(sum(charges), 6) + 0.0 if any(charges) else None  # no -0.0


def _charges(system: openmm.System) -> Iterator[list[float]]:
    """Charges of all particles, of each force with charges."""
    for force in system.getForces():
        if isinstance(force, openmm.NonbondedForce):
            yield _of_standard(force)
    for force in system.getForces():
        if isinstance(force, openmm.CustomNonbondedForce):
            names = [force.getPerParticleParameterName(k) for k in range(force.getNumPerParticleParameters())]
            if "charge" in names:
                place = names.index("charge")
                yield [force.getParticleParameters(index)[place] for index in range(force.getNumParticles())]


def _of_standard(force: openmm.NonbondedForce) -> list[float]:
    found = [force.getParticleParameters(index)[0]._value for index in range(force.getNumParticles())]
    numbers = range(force.getNumGlobalParameters())
    values = {force.getGlobalParameterName(k): force.getGlobalParameterDefaultValue(k) for k in numbers}
    for index in range(force.getNumParticleParameterOffsets()):
        parameter, particle, charge, *_ = force.getParticleParameterOffset(index)
        found[particle] += values[parameter] * charge
    return found
