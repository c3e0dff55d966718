"""ML/MM by mechanical embedding: a potential inside a region of a system, the force field everywhere else."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import openmm

from torchmdx.openmm_force.add import add_potential
from torchmdx.openmm_force.atoms import Region, checked_atoms
from torchmdx.openmm_force.derivatives import described
from torchmdx.openmm_force.find import find_in, is_scaled_potential
from torchmdx.openmm_force.mixed_bonded import BONDED, scale, separate_bonded
from torchmdx.openmm_force.mixed_pairs import exclude_custom_pairs, exclude_pairs
from torchmdx.openmm_force.mixed_terms import Choice, bonds_inside, covalent_bonds

if TYPE_CHECKING:
    from openmm import app

    from torchmdx.checkpoints.prepare import PotentialSource

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


def create_mixed_system(
    system: openmm.System,
    topology: app.Topology,
    atoms: Region,
    potential: PotentialSource = None,
    *,
    charge: float = 0.0,
    interpolate: str | None = None,
    remove_constraints: bool = True,
    keep: Iterable[str] = (),
    replace: Iterable[str] = (),
    transport: str = "auto",
    mode: str = "auto",
    precision: str = "float32",
    device: str | None = None,
    skin: float = 0.0,
    audit_every: int = 0,
    force_group: int = 0,
    periodic: bool | None = None,
    scale_parameter: str | None = None,
    max_force_spread: float | None = None,
    spread_file: str | Path | None = None,
    name: str = "torchmdx",
) -> openmm.System:
    """A copy of an MM system in which `atoms` interact with each other through `potential` alone.

        E = E_MM(whole) - E_MM(the region, isolated) + E_ML(the region)

    Removed are the force field's bonded terms and constraints all of whose atoms are in the region, and nonbonded
    interactions between two of its atoms. Kept are terms on atoms that bonds do not connect, such as restraints, and
    forces with global parameters on atoms that have other terms of the same kind, such as a bias on a torsion. A force
    that could be either is refused by name.

    Interactions across the border of the region remain those of the force field: MM charges and Lennard-Jones. The same
    holds between the region and its own periodic images in a lattice sum (Ewald, PME), where only the nearest image of
    a pair is removed: the box must be larger than the region plus the potential's cutoff. The long-range dispersion
    correction and implicit solvent (GBSA-OBC, CustomGBForce) are not changed: the potential describes the region in
    vacuum, and the solvent responds to its MM charges.

    atoms: the region, as for `add_potential`. potential: a Potential, a checkpoint's path, or a name; None for the
        default potential. charge: of the region in e, or with a unit.
    The options from transport on, except name, are those of `add_potential`.
    interpolate: name of a new global parameter λ, 1 by default, that multiplies the potential, while 1 - λ multiplies
        the removed terms: λ = 0 is `system`, λ = 1 the mixed system. Contexts change it with setParameter.
    remove_constraints: False keeps the constraints inside the region.
    keep, replace: names of forces (force.setName) that are kept whole, and of forces whose terms inside the region are
        removed as the force field's, where torchmdx cannot know.

    Raises ValueError for a region that cuts a covalent bond (there are no link atoms), contains virtual sites or their
    parents, or is not a set of atoms of the system; for a force whose action inside the region is unknown; and for an
    interpolation that would leave atoms unbound at λ = 0.
    """
    if atoms is None:
        raise TypeError("atoms must name the region, got None")
    region = frozenset(checked_atoms(system, topology, atoms) or ())
    choice = Choice(system, keep, replace)
    bonds = covalent_bonds(system, topology)
    _require_uncut(topology, region, bonds)
    _require_no_virtual_sites(system, region)
    if interpolate is not None:
        _require_new_name(interpolate, scale_parameter)
    inside = bonds_inside(system, bonds, region)
    mixed = _without_region(system, topology, region, inside, choice, interpolate, remove_constraints)
    add_potential(
        mixed, topology, potential, sorted(region), charge=charge, transport=transport, mode=mode, precision=precision,
        device=device, skin=skin, audit_every=audit_every, force_group=force_group, periodic=periodic,
        scale_parameter=interpolate or scale_parameter, max_force_spread=max_force_spread, spread_file=spread_file,
        name=name,
    )  # fmt: skip
    return mixed


def require_replaced_constraints(
    system: openmm.System,
    topology: app.Topology,
    atoms: Region,
    keep: Iterable[str] = (),
    replace: Iterable[str] = (),
) -> None:
    """Raises ValueError if a constraint inside the region has no bond or angle in its place, for an interpolation."""
    region = frozenset(checked_atoms(system, topology, atoms) or ())
    bonds = bonds_inside(system, covalent_bonds(system, topology), region)
    separated = separate_bonded(system, region, bonds, Choice(system, keep, replace))
    _require_held(topology, _constraints_inside(system, region), separated.held)


def _without_region(
    system: openmm.System,
    topology: app.Topology,
    region: frozenset[int],
    bonds: set[frozenset[int]],
    choice: Choice,
    interpolate: str | None,
    remove_constraints: bool,
) -> openmm.System:
    """A copy without the force field's interactions inside the region, or with these times 1 - interpolate."""
    _require_known_forces(system, region, choice)
    separated = separate_bonded(system, region, bonds, choice)
    mixed = separated.system
    scaled = [scale(force, interpolate) for force in separated.removed] if interpolate else []
    for force in mixed.getForces():
        if isinstance(force, openmm.NonbondedForce):
            scaled += exclude_pairs(force, region, interpolate)
        elif isinstance(force, openmm.CustomNonbondedForce):
            scaled += exclude_custom_pairs(force, region, interpolate)
    if remove_constraints:
        lost = _remove_constraints(mixed, region)
        if interpolate:
            _require_held(topology, lost, separated.held)
    for force in scaled:
        mixed.addForce(force)
    return mixed


def _require_uncut(topology: app.Topology, region: frozenset[int], bonds: set[frozenset[int]]) -> None:
    for bond in sorted(map(sorted, bonds)):
        inside = [index for index in bond if index in region]
        if len(inside) == 1:
            (outside,) = set(bond) - set(inside)
            raise ValueError(
                "the ML region must not cut a covalent bond, because there are no link atoms: "
                f"{_label(topology, inside[0])} is inside and {_label(topology, outside)}, bonded to it, is not"
            )


def _label(topology: app.Topology, index: int) -> str:
    for atom in topology.atoms():
        if atom.index == index:
            return f"atom {index} ({atom.residue.name} {atom.residue.id} {atom.name})"
    raise IndexError(index)


def _require_no_virtual_sites(system: openmm.System, region: frozenset[int]) -> None:
    for index in range(system.getNumParticles()):
        if not system.isVirtualSite(index):
            continue
        site = system.getVirtualSite(index)
        parents = {site.getParticle(place) for place in range(site.getNumParticles())}
        if index in region or parents & region:
            raise ValueError(
                f"the ML region must be free of virtual sites, got particle {index}, a site on atoms {sorted(parents)}"
            )


def _require_known_forces(system: openmm.System, region: frozenset[int], choice: Choice) -> None:
    for index, force in enumerate(system.getForces()):
        if force.getName() not in choice.keep and not _is_known(force, region):
            raise ValueError(
                "the system must have no force whose part inside the ML region is unknown, "
                f"got {described(force)} (force {index}). If it is a bias, add its name to keep, or add it to the "
                "mixed system instead"
            )


def _is_known(force: openmm.Force, region: frozenset[int]) -> bool:
    """Whether a force can be separated, can be kept unchanged, or does not act on the region."""
    kind = type(force).__name__
    if kind in BONDED or kind in _KEPT or kind in ("NonbondedForce", "CustomNonbondedForce"):
        return True
    if kind == "CustomGBForce":
        # On a GPU its exclusions must equal those of the other forces, which change; implicit solvent has none.
        return not force.getNumExclusions()
    if kind == "PythonForce":
        return bool(force.getParticles()) and region.isdisjoint(force.getParticles())
    if kind in ("Force", "TorchForce") or is_scaled_potential(force):
        potentials = find_in(force)
        return bool(potentials) and all(region.isdisjoint(found.atoms) for found in potentials)
    if kind == "DrudeForce":
        numbers = range(force.getNumParticles())
        return all(region.isdisjoint(force.getParticleParameters(number)[:5]) for number in numbers)
    if kind == "CustomCentroidBondForce":
        return not any(_lies_inside(force, number, region) for number in range(force.getNumBonds()))
    return False


def _lies_inside(force: openmm.CustomCentroidBondForce, number: int, region: frozenset[int]) -> bool:
    groups, _ = force.getBondParameters(number)
    return all(region.issuperset(force.getGroupParameters(group)[0]) for group in groups)


def _require_new_name(interpolate: str, scale_parameter: str | None) -> None:
    if not interpolate.isidentifier():
        raise ValueError(f"interpolate must be the name of a parameter, got {interpolate!r}")
    if scale_parameter is not None:
        raise ValueError(
            "interpolate scales the potential already: scale_parameter must be None with it, "
            f"got {scale_parameter!r} and interpolate {interpolate!r}"
        )


def _constraints_inside(system: openmm.System, region: frozenset[int]) -> list[frozenset[int]]:
    pairs = (frozenset(system.getConstraintParameters(i)[:2]) for i in reversed(range(system.getNumConstraints())))
    return [pair for pair in pairs if pair <= region]


def _remove_constraints(system: openmm.System, region: frozenset[int]) -> list[frozenset[int]]:
    """Removes constraints between two atoms of the region; returns their pairs."""
    lost = _constraints_inside(system, region)
    for index in reversed(range(system.getNumConstraints())):
        if region.issuperset(system.getConstraintParameters(index)[:2]):
            system.removeConstraint(index)
    return lost


def _require_held(topology: app.Topology, lost: list[frozenset[int]], held: set[frozenset[int]]) -> None:
    for pair in lost:
        if pair not in held:
            first, second = (_label(topology, index) for index in sorted(pair))
            raise ValueError(
                "interpolate needs a bond or an angle in place of each removed constraint, or atoms are unbound at 0: "
                f"there is none between {first} and {second}. Create the MM system with flexibleConstraints=True, or "
                "keep the constraints with remove_constraints=False"
            )
