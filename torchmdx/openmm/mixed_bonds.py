"""Covalent bonds of a System: those of its topology, and those that only the force field shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import openmm
from openmm import app

Pair = frozenset[int]
Partners = dict[int, set[int]]


def covalent_bonds(system: openmm.System, topology: app.Topology) -> set[Pair]:
    """Bonds of the topology, and harmonic bonds and constraints that it lacks, of atoms with no nonbonded interaction.

    Harmonic terms on atoms that the topology connects by two or three bonds are none: Urey-Bradley terms, restraints.
    """
    bonds = {frozenset((bond[0].index, bond[1].index)) for bond in topology.bonds()}
    partners = partners_of(bonds)
    held = _held_pairs(system).intersection(_excluded_pairs(system)) - bonds
    return bonds | {pair for pair in held if not are_near(pair, partners)}


def bonds_inside(system: openmm.System, bonds: set[Pair], region: frozenset[int]) -> set[Pair]:
    """Of the covalent bonds those inside the region; without any, all harmonic bonds and constraints inside it."""
    inside = {bond for bond in bonds if bond <= region}
    return inside or {pair for pair in _held_pairs(system) if pair <= region}


def _held_pairs(system: openmm.System) -> set[Pair]:
    """Pairs of harmonic bonds and constraints, without Urey-Bradley terms: ends of angles that are not an angle's arm.

    An arm of an angle is its middle atom with one of its ends, which a bond connects.
    """
    angles = [tuple(atoms) for atoms in _angles(system)]
    ends = {frozenset((first, last)) for first, _, last in angles}
    arms = {frozenset((middle, end)) for first, middle, last in angles for end in (first, last)}
    return set(_pairs(system)) - (ends - arms)


def _pairs(system: openmm.System) -> Iterator[Pair]:
    for index in range(system.getNumConstraints()):
        yield frozenset(system.getConstraintParameters(index)[:2])
    for force in system.getForces():
        if isinstance(force, openmm.HarmonicBondForce):
            yield from (frozenset(force.getBondParameters(index)[:2]) for index in range(force.getNumBonds()))


def _angles(system: openmm.System) -> Iterator[list[int]]:
    for force in system.getForces():
        if isinstance(force, (openmm.HarmonicAngleForce, openmm.CustomAngleForce)):
            yield from (force.getAngleParameters(index)[:3] for index in range(force.getNumAngles()))


def _excluded_pairs(system: openmm.System) -> Iterator[Pair]:
    """Without a NonbondedForce those of CustomNonbondedForces, of which 1-4 pairs may be excluded as well."""
    forces = system.getForces()
    standard = [force for force in forces if isinstance(force, openmm.NonbondedForce)]
    for force in standard:
        for index in range(force.getNumExceptions()):
            first, second, charge, _, depth = force.getExceptionParameters(index)
            if not (charge._value or depth._value):
                yield frozenset((first, second))
    for force in forces:
        if isinstance(force, openmm.CustomNonbondedForce) and not standard:
            yield from (frozenset(force.getExclusionParticles(index)) for index in range(force.getNumExclusions()))


def partners_of(bonds: Iterable[Pair]) -> Partners:
    """The atoms that each atom is bonded to."""
    partners: Partners = {}
    for first, second in (tuple(pair) for pair in bonds if len(pair) == 2):
        partners.setdefault(first, set()).add(second)
        partners.setdefault(second, set()).add(first)
    return partners


def are_near(pair: Iterable[int], partners: Partners, most: int = 3) -> bool:
    """Whether at most this number of bonds connects two atoms."""
    first, second = pair
    reached = {first}
    for _ in range(most):
        reached |= {other for atom in reached for other in partners.get(atom, ())}
    return second in reached


def connected(start: Iterable[int], partners: Partners, within: set[int] | None = None) -> set[int]:
    """All atoms that bonds connect with those of `start`; within: through these atoms alone."""
    reached: set[int] = set()
    open_ends = set(start)
    while open_ends:
        reached |= open_ends
        open_ends = {other for atom in open_ends for other in partners.get(atom, ())} - reached
        open_ends &= open_ends if within is None else within
    return reached


def is_bonded(term: tuple[int, ...], partners: Partners) -> bool:
    """Whether bonds among its atoms connect them; two atoms may also be the ends of an angle (Urey-Bradley)."""
    atoms = set(term)
    if len(atoms) == 2:
        return are_near(atoms, partners, most=2)
    return connected(term[:1], partners, atoms) == atoms
