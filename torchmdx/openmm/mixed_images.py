"""The force field's energy between a region and its own periodic images, for potentials that have it themselves."""

from __future__ import annotations

from itertools import combinations

import openmm
from openmm import unit

from torchmdx.models.coulomb_cutoff import sum_error_of
from torchmdx.openmm.mixed_bonded import Factor, wrapped
from torchmdx.openmm.mixed_electrostatics import LATTICE_SUMS
from torchmdx.openmm.potential_force import PotentialForce


def images_to_remove(
    system: openmm.System, region: list[int], long_range: bool | None, added: PotentialForce, interpolate: str | None
) -> list[openmm.Force]:
    """Forces with minus the Coulomb energy between the region and its own images in the lattice sum of `system`.

    Args:
        long_range: True or False as requested; None: whether the potential sums its Coulomb energy over all images.
            Empty without, and with electrostatic embedding.

    Raises:
        ValueError: If it is requested for a periodic System without exactly one lattice sum.
    """
    sums = [each for each in system.getForces() if isinstance(each, openmm.NonbondedForce) and _is_sum(each)]
    if long_range is None:
        evaluator = added.evaluator
        long_range = bool(sums) and sum_error_of(evaluator.potential, evaluator.settings.periodic) > 0
    if added.embedding == "electrostatic" or not long_range or not system.usesPeriodicBoundaryConditions():
        return []
    if len(sums) != 1:
        raise ValueError(
            "long_range=True needs a periodic System with one NonbondedForce that sums over all images (Ewald, PME or "
            f"LJPME), got {len(sums)}"
        )
    return [wrapped(_images(sums[0], region), Factor(interpolate, is_difference=True))]


def _is_sum(force: openmm.NonbondedForce) -> bool:
    return force.getNonbondedMethod() in LATTICE_SUMS


def _images(force: openmm.NonbondedForce, region: list[int]) -> openmm.NonbondedForce:
    """The same sum over charges in the region alone, without the nearest image of each pair."""
    _require_constant(force, set(region))
    images = openmm.NonbondedForce()
    images.setName(f"{force.getName()} images")
    images.setForceGroup(force.getForceGroup())
    method, ewald = force.getNonbondedMethod(), openmm.NonbondedForce.Ewald
    images.setNonbondedMethod(ewald if method == ewald else openmm.NonbondedForce.PME)
    images.setCutoffDistance(force.getCutoffDistance())
    images.setEwaldErrorTolerance(force.getEwaldErrorTolerance())
    images.setPMEParameters(*force.getPMEParameters())
    images.setReciprocalSpaceForceGroup(force.getReciprocalSpaceForceGroup())
    images.setUseDispersionCorrection(False)
    images.setExceptionsUsePeriodicBoundaryConditions(True)
    inside = set(region)
    for index in range(force.getNumParticles()):
        images.addParticle(force.getParticleParameters(index)[0] if index in inside else 0.0, 1.0, 0.0)
    for first, second in combinations(sorted(region), 2):
        images.addException(first, second, 0.0, 1.0, 0.0)
    return images


def _require_constant(force: openmm.NonbondedForce, inside: set[int]) -> None:
    for index in range(force.getNumParticleParameterOffsets()):
        parameter, particle, charge, *_ = force.getParticleParameterOffset(index)
        charge = charge.value_in_unit(unit.elementary_charge) if unit.is_quantity(charge) else charge
        if particle in inside and charge:
            raise ValueError(
                f"long_range=True needs charges in the region that are constant, but there they depend on {parameter!r}"
            )
