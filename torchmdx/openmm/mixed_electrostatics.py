"""Electrostatic embedding in a System: the region's charges leave the force field, and the others are handed over."""

from __future__ import annotations

import openmm
from openmm import unit

from torchmdx.openmm.derivatives import described
from torchmdx.openmm.find import find
from torchmdx.openmm.surroundings import Surroundings
from torchmdx.structures.units import NANOMETER

EMBEDDINGS = ("mechanical", "electrostatic")
LATTICE_SUMS = (openmm.NonbondedForce.Ewald, openmm.NonbondedForce.PME, openmm.NonbondedForce.LJPME)
_SOLVENT = (openmm.GBSAOBCForce, openmm.CustomGBForce)


def require_embedding(embedding: str, **options: object) -> None:
    """Raises ValueError for an unknown embedding, and for options that electrostatic embedding does not have."""
    if embedding not in EMBEDDINGS:
        raise ValueError(f"embedding must be one of {', '.join(EMBEDDINGS)}, got {embedding!r}")
    if embedding == "electrostatic":
        for name, value in options.items():
            if value not in (None, False):
                raise ValueError(f"electrostatic embedding has no {name}, got {value!r}: use mechanical embedding")


def take_charges(system: openmm.System, region: list[int]) -> Surroundings:
    """Sets the region's charges in the System's NonbondedForce to zero; what the region then interacts with.

    Raises:
        ValueError: For a System without exactly one NonbondedForce, and for one whose Coulomb interactions with the
            region are not all of this force, or are not constant.
    """
    found = [force for force in system.getForces() if isinstance(force, openmm.NonbondedForce)]
    if len(found) != 1:
        raise ValueError(f"electrostatic embedding needs a System with one NonbondedForce, got {len(found)}")
    (force,) = found
    _require_plain(system, force, set(region))
    charges = [force.getParticleParameters(index)[0].value_in_unit(unit.elementary_charge)
               for index in range(force.getNumParticles())]  # fmt: skip
    for index in region:
        _, *lennard_jones = force.getParticleParameters(index)
        force.setParticleParameters(index, 0.0, *lennard_jones)
    inside = set(region)
    outside = tuple(charge for index, charge in enumerate(charges) if index not in inside)
    method = force.getNonbondedMethod()
    kind = "lattice" if method in LATTICE_SUMS else "plain" if method == openmm.NonbondedForce.NoCutoff else "field"
    cutoff = NANOMETER * force.getCutoffDistance().value_in_unit(unit.nanometer)
    return Surroundings(
        kind, outside, force.usesPeriodicBoundaryConditions(), cutoff, force.getReactionFieldDielectric()
    )


def _require_plain(system: openmm.System, force: openmm.NonbondedForce, region: set[int]) -> None:
    if force.getNumParticleParameterOffsets() or force.getNumExceptionParameterOffsets():
        raise ValueError("electrostatic embedding needs constant nonbonded parameters, got parameter offsets")
    for index in range(force.getNumExceptions()):
        pair = set(force.getExceptionParameters(index)[:2])
        if len(pair & region) == 1:
            raise ValueError(
                "electrostatic embedding needs a region without nonbonded exceptions to other particles, got one "
                f"between {' and '.join(map(str, sorted(pair)))}"
            )
    for other in system.getForces():
        if isinstance(other, _SOLVENT):
            raise ValueError(
                f"electrostatic embedding needs explicit solvent or none, got {described(other)}, which uses MM charges"
            )
    if any(potential.evaluator.settings.surroundings is not None for potential in find(system)):
        raise ValueError("a System can have one electrostatically embedded region, got a second")
