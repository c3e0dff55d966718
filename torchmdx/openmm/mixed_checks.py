"""What create_mixed_system refuses: regions, forces, names and constraints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import openmm

from torchmdx.openmm.atoms import Region, checked_atoms
from torchmdx.openmm.derivatives import described
from torchmdx.openmm.find import find_in, is_scaled_potential
from torchmdx.openmm.mixed_bonded import BONDED
from torchmdx.openmm.mixed_cuts import label
from torchmdx.openmm.mixed_terms import TermChoice

if TYPE_CHECKING:
    from openmm import app

# Forces without interactions between atoms of the region that the potential replaces: thermostats, barostats, external
# forces, biases on sets of atoms, and implicit solvent.
_KEPT = {
    "AndersenThermostat",
    "CMMotionRemover",
    "CustomExternalForce",
    "CustomVolumeForce",
    "GBSAOBCForce",
    "LCPOForce",
    "MonteCarloAnisotropicBarostat",
    "MonteCarloBarostat",
    "MonteCarloFlexibleBarostat",
    "MonteCarloMembraneBarostat",
    "OrientationRestraintForce",
    "RGForce",
    "RMSDForce",
    "RPMDMonteCarloBarostat",
}


def checked_region(system: openmm.System, topology: app.Topology, atoms: Region) -> frozenset[int]:
    """The atoms of a region. Raises what `checked_atoms` raises, and ValueError for virtual sites."""
    if atoms is None:
        raise TypeError("atoms must name the region, got None")
    region = frozenset(checked_atoms(system, topology, atoms) or ())
    _require_no_virtual_sites(system, region)
    return region


def _require_no_virtual_sites(system: openmm.System, region: frozenset[int]) -> None:
    """Raises ValueError for a virtual site in the region, or on its atoms."""
    for index in range(system.getNumParticles()):
        if not system.isVirtualSite(index):
            continue
        site = system.getVirtualSite(index)
        parents = {site.getParticle(place) for place in range(site.getNumParticles())}
        if index in region or parents & region:
            raise ValueError(
                f"the ML region must be free of virtual sites, got particle {index}, a site on atoms "
                f"{sorted(parents)}: leave this molecule to the force field, or use a model without virtual sites for "
                "it, such as TIP3P"
            )


# The first letters of forces of polarizable force fields: Drude oscillators, AMOEBA, HIPPO.
POLARIZABLE = ("Drude", "Amoeba", "Hippo")


def require_known_forces(system: openmm.System, region: frozenset[int], choice: TermChoice) -> None:
    """Raises ValueError for a force whose part inside the region is unknown."""
    for index, force in enumerate(system.getForces()):
        if force.getName() not in choice.keep and not _is_known(force, region):
            advice = "If it is a bias, add its name to keep, or add it to the mixed system instead"
            if type(force).__name__.startswith(POLARIZABLE):
                advice = (
                    "It belongs to a polarizable force field, whose induced dipoles depend on the atoms on both sides "
                    "of the border: use one with fixed charges"
                )
            raise ValueError(
                "the system must have no force whose part inside the ML region is unknown, "
                f"got {described(force)} (force {index}). {advice}"
            )


def _is_known(force: openmm.Force, region: frozenset[int]) -> bool:
    """Whether a force can be separated, can be kept unchanged, or does not act on the region."""
    kind = type(force).__name__
    if kind in BONDED or kind in _KEPT or kind in ("NonbondedForce", "CustomNonbondedForce"):
        return True
    if kind == "CustomGBForce":
        # On a GPU its exclusions must equal those of the other forces, which change; implicit solvent has none.
        return not force.getNumExclusions()
    if kind in ("PythonForce", "Force", "TorchForce") or is_scaled_potential(force):
        potentials = find_in(force)
        if kind == "PythonForce" and not potentials:
            return bool(force.getParticles()) and region.isdisjoint(force.getParticles())
        return bool(potentials) and all(region.isdisjoint(found.atoms) for found in potentials)
    if kind == "CustomCVForce":  # such as the images of another region
        variables = [force.getCollectiveVariable(number) for number in range(force.getNumCollectiveVariables())]
        return bool(variables) and all(
            isinstance(each, openmm.NonbondedForce) and _is_off(each, region) for each in variables
        )
    if kind == "DrudeForce":
        numbers = range(force.getNumParticles())
        return all(region.isdisjoint(force.getParticleParameters(number)[:5]) for number in numbers)
    if kind == "CustomCentroidBondForce":
        return not any(_lies_inside(force, number, region) for number in range(force.getNumBonds()))
    return False


def _is_off(force: openmm.NonbondedForce, region: frozenset[int]) -> bool:
    """Whether the particles of a region have no charge and no Lennard-Jones interaction, by constant parameters."""
    if force.getNumParticleParameterOffsets() or force.getNumExceptionParameterOffsets():
        return False
    particles = (force.getParticleParameters(index) for index in region)
    exceptions = (force.getExceptionParameters(number) for number in range(force.getNumExceptions()))
    inside = (values for first, second, *values in exceptions if {first, second} & region)
    return not any(charge._value or epsilon._value for charge, _, epsilon in (*particles, *inside))


def _lies_inside(force: openmm.CustomCentroidBondForce, number: int, region: frozenset[int]) -> bool:
    groups, _ = force.getBondParameters(number)
    return all(region.issuperset(force.getGroupParameters(group)[0]) for group in groups)


def require_new_name(interpolate: str | None, scale_parameter: str | None) -> None:
    """Raises ValueError for a name that cannot be the parameter of an interpolation."""
    if interpolate is None:
        return
    if not interpolate.isidentifier():
        raise ValueError(f"interpolate must be the name of a parameter, got {interpolate!r}")
    if scale_parameter is not None:
        raise ValueError(
            "interpolate scales the potential already: scale_parameter must be None with it, "
            f"got {scale_parameter!r} and interpolate {interpolate!r}"
        )


def require_held(topology: app.Topology, lost: list[frozenset[int]], held: set[frozenset[int]]) -> None:
    """Raises ValueError for a removed constraint, one of `lost`, whose atoms no bond or angle holds."""
    for pair in lost:
        if pair not in held:
            atoms = list(topology.atoms())
            first, second = (label(atoms[index]) for index in sorted(pair))
            raise ValueError(
                "interpolate and difference_group need a bond or an angle in place of each removed constraint, or the "
                f"force field leaves atoms unbound: there is none between {first} and {second}. Create the MM system "
                "with flexibleConstraints=True, or keep the constraints with remove_constraints=False"
            )


def require_free_group(system: openmm.System, difference_group: int | None, force_group: int) -> None:
    """Raises ValueError if the group of a difference is not its own."""
    if difference_group is None:
        return
    if not 0 <= difference_group <= 31:
        raise ValueError(f"difference_group must be between 0 and 31, got {difference_group}")
    if force_group:
        raise ValueError(f"difference_group takes the place of force_group, which must be 0 with it, got {force_group}")
    for force in system.getForces():
        if force.getForceGroup() == difference_group:
            raise ValueError(
                f"difference_group must be a group that no force of the system has, got {difference_group}, the group "
                f"of {described(force)}"
            )
