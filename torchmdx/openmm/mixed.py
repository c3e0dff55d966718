"""ML/MM by mechanical embedding: a potential inside a region of a system, the force field everywhere else.

::

    E = E_MM(whole) - E_MM(the region, isolated) + E_ML(the region)

Removed are the force field's bonded terms and constraints all of whose atoms are in the region, and nonbonded
interactions between two of its atoms. Interactions across the border of the region remain those of the force field: MM
charges and Lennard-Jones. The same holds between the region and its own periodic images in a lattice sum (Ewald, PME),
where only the nearest image of a pair is removed: the box must be larger than the region plus the potential's cutoff.
If the potential sums its own Coulomb energy over all images, the force field's is removed (mixed_images.py).
A region that cuts covalent bonds gets a hydrogen at each of them on request (mixed_cuts.py, link_atoms.py).
The long-range dispersion correction and implicit solvent (GBSA-OBC, CustomGBForce) are not changed: the potential
describes the region in vacuum, and the solvent responds to its MM charges.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import openmm

from torchmdx.openmm.add import add_potential
from torchmdx.openmm.atoms import Region
from torchmdx.openmm.link_atoms import LinkAtom
from torchmdx.openmm.mixed_bonded import Factor, bonds_without_energy, scale, separate_bonded
from torchmdx.openmm.mixed_bonds import bonds_inside, covalent_bonds
from torchmdx.openmm.mixed_checks import (
    checked_region,
    require_free_group,
    require_held,
    require_known_forces,
    require_new_name,
)
from torchmdx.openmm.mixed_cuts import Border, LinkRequest, link_atoms_of
from torchmdx.openmm.mixed_electrostatics import require_embedding, take_charges
from torchmdx.openmm.mixed_images import images_to_remove
from torchmdx.openmm.mixed_pairs import exclude_custom_pairs, exclude_pairs
from torchmdx.openmm.mixed_terms import TermChoice
from torchmdx.openmm.region_charge import AUTO, charge_of

if TYPE_CHECKING:
    from openmm import app, unit

    from torchmdx.checkpoints.prepare import PotentialSource


def create_mixed_system(
    system: openmm.System,
    topology: app.Topology,
    atoms: Region,
    potential: PotentialSource = None,
    *,
    charge: float | unit.Quantity | str = AUTO,
    interpolate: str | None = None,
    difference_group: int | None = None,
    remove_constraints: bool = True,
    link_atoms: LinkRequest = False,
    embedding: str = "mechanical",
    long_range: bool | None = None,
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
    uncertainty: bool = False,
    max_uncertainty: float | None = None,
    energy_offset: float | unit.Quantity | str = 0.0,
    coulomb_cutoff: float | None = None,
    coulomb: str | None = None,
    coulomb_accuracy: float | None = None,
    head: str | None = None,
    name: str = "torchmdx",
) -> openmm.System:
    """A copy of an MM system in which `atoms` interact with each other through `potential` alone.

    Args:
        atoms, potential, charge: The region; transport and all that follow are options of `add_potential`.
        interpolate: Name of a new global parameter λ, 1 by default. The energy is 1 - λ times that of `system` plus λ
            times that of the mixed system; Contexts change it with setParameter.
        difference_group: A force group for E_ML - E_MM of the region alone, for multiple time steps; `system` stays
            whole.
        link_atoms: True for a hydrogen, no particle, at every bond that is cut; (atom, atom, nm) for a distance of its
            own.
        remove_constraints: False keeps those inside.
        embedding: "electrostatic": predicted charges meet those outside.
        long_range: Leave Coulomb interactions of the region with its images to the potential; None: if it has them.
        keep, replace: Names of forces that are kept whole, and of those whose terms inside the region are removed.

    Raises:
        ValueError: For what docs/openmm.md refuses, and if λ or a difference needs constraints that were removed.
    """
    require_new_name(interpolate, scale_parameter)
    require_free_group(system, difference_group, force_group)
    refused = dict(interpolate=interpolate, difference_group=difference_group, link_atoms=link_atoms)
    require_embedding(embedding, long_range=long_range, **refused)
    choice, factor = TermChoice(system, keep, replace), Factor.of(interpolate, difference_group)
    parts = _separate(system, topology, atoms, choice, factor, remove_constraints, link_atoms)
    added = add_potential(
        parts.outside, topology, potential, parts.region, charge=charge_of(system, parts.region, charge),
        transport=transport, mode=mode, precision=precision, device=device, skin=skin, audit_every=audit_every,
        force_group=force_group, periodic=periodic, scale_parameter=interpolate or scale_parameter,
        max_force_spread=max_force_spread, spread_file=spread_file, uncertainty=uncertainty,
        max_uncertainty=max_uncertainty, energy_offset=energy_offset,
        coulomb_cutoff=coulomb_cutoff, coulomb=coulomb, coulomb_accuracy=coulomb_accuracy, head=head, name=name,
        link_atoms=parts.links,
        surroundings=take_charges(parts.outside, parts.region) if embedding == "electrostatic" else None,
    )  # fmt: skip
    images = images_to_remove(system, parts.region, long_range, added, interpolate)
    return _completed(system, parts, added.force, images, difference_group)


def require_replaced_constraints(
    system: openmm.System,
    topology: app.Topology,
    atoms: Region,
    keep: Iterable[str] = (),
    replace: Iterable[str] = (),
    link_atoms: LinkRequest = False,
) -> None:
    """Raises ValueError if a constraint inside the region has no bond or angle in its place, for an interpolation."""
    _separate(system, topology, atoms, TermChoice(system, keep, replace), Factor(None), True, link_atoms)


@dataclass(frozen=True)
class _Parts:
    """A System without the force field's interactions inside the region; for a difference, these times -1 or -λ.

    Attributes:
        lost: Pairs of atoms whose constraints are removed.
    """

    region: list[int]
    links: tuple[LinkAtom, ...]
    outside: openmm.System
    difference: list[openmm.Force]
    lost: list[frozenset[int]]


def _separate(
    system: openmm.System,
    topology: app.Topology,
    atoms: Region,
    choice: TermChoice,
    factor: Factor | None,
    remove_constraints: bool,
    link_atoms: LinkRequest,
) -> _Parts:
    region = checked_region(system, topology, atoms)
    bonds = covalent_bonds(system, topology)
    links = link_atoms_of(topology, region, bonds, link_atoms)
    require_known_forces(system, region, choice)
    known = bonds_inside(system, bonds, region).union(frozenset((link.inner, link.outer)) for link in links)
    separated = separate_bonded(system, Border(region, links, frozenset(bonds)), known, choice)
    scaled = [scale(force, factor) for force in separated.removed] if factor else []
    for force in separated.system.getForces():
        if isinstance(force, openmm.NonbondedForce):
            scaled += exclude_pairs(force, region, factor)
        elif isinstance(force, openmm.CustomNonbondedForce):
            scaled += exclude_custom_pairs(force, region, factor)
    lost = _constraints_inside(system, region) if remove_constraints else []
    if factor is not None:
        require_held(topology, lost, separated.held)
    _remove_constraints(separated.system, lost)
    if factor is not None and factor.is_difference:
        return _Parts(sorted(region), links, separated.system, scaled, lost)
    if factor is None and known:
        scaled.append(bonds_without_energy(known))
    for force in scaled:
        separated.system.addForce(force)
    return _Parts(sorted(region), links, separated.system, [], lost)


def _completed(
    system: openmm.System, parts: _Parts, potential: openmm.Force, images: list[openmm.Force], group: int | None
) -> openmm.System:
    """The mixed System: the outside with the potential and without `images`, or for a difference the whole."""
    if group is not None:
        parts.difference.extend(images)
        return _whole_with_difference(system, parts, potential, group)
    for force in images:
        parts.outside.addForce(force)
    return parts.outside


def _whole_with_difference(system: openmm.System, parts: _Parts, force: openmm.Force, group: int) -> openmm.System:
    """A copy of the System with the potential, and minus the force field inside the region, in a group of their own."""
    whole = copy.deepcopy(system)
    _remove_constraints(whole, parts.lost)
    whole.setDefaultPeriodicBoxVectors(*parts.outside.getDefaultPeriodicBoxVectors())
    potential = copy.deepcopy(force)
    for each in (*parts.difference, potential):
        each.setForceGroup(group)
        whole.addForce(each)
    return whole


def _constraints_inside(system: openmm.System, region: frozenset[int]) -> list[frozenset[int]]:
    pairs = (frozenset(system.getConstraintParameters(i)[:2]) for i in reversed(range(system.getNumConstraints())))
    return [pair for pair in pairs if pair <= region]


def _remove_constraints(system: openmm.System, pairs: list[frozenset[int]]) -> None:
    for index in reversed(range(system.getNumConstraints())):
        if frozenset(system.getConstraintParameters(index)[:2]) in pairs:
            system.removeConstraint(index)
