"""Two-atom terms inside a region on nonbonded exceptions: 1-4 interactions of the force field, or biases.

A NonbondedForce has 1-4 interactions as exceptions. A CustomNonbondedForce has exclusions alone, so that force fields
with one (CHARMM36, OPLS in GROMACS' files) and alchemical systems have the 1-4 interactions as bonds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import openmm

from torchmdx.openmm.inner_terms import InnerTerms, named
from torchmdx.openmm.mixed_bonds import Pair, Partners, are_near, connected, is_bonded

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Exceptions:
    """Pairs of the region that are nonbonded exceptions or exclusions.

    Attributes:
        incomplete: Those that a CustomNonbondedForce excludes and for which no NonbondedForce has both charges and a
            Lennard-Jones term, so that a 1-4 interaction can only be a bond.
    """

    every: frozenset[Pair]
    incomplete: frozenset[Pair]

    @classmethod
    def of(cls, system: openmm.System, region: frozenset[int]) -> Exceptions:
        standard: set[Pair] = set()
        custom: set[Pair] = set()
        complete: set[Pair] = set()
        for force in system.getForces():
            if isinstance(force, openmm.NonbondedForce):
                for index in range(force.getNumExceptions()):
                    first, second, charge, _, depth = force.getExceptionParameters(index)
                    standard.add(frozenset((first, second)))
                    if charge._value and depth._value:
                        complete.add(frozenset((first, second)))
            elif isinstance(force, openmm.CustomNonbondedForce):
                custom.update(
                    frozenset(force.getExclusionParticles(index)) for index in range(force.getNumExclusions())
                )
        inside = frozenset(pair for pair in standard | custom if pair <= region)
        return cls(inside, inside & (custom - complete))


def is_pair_term(term: tuple[int, ...], exceptions: Exceptions, partners: Partners) -> bool:
    """Whether a term that no bond or angle explains acts on an exception, or on the ends of a torsion."""
    pair = frozenset(term)
    return len(pair) == 2 and (pair in exceptions.every or are_near(pair, partners))


def are_force_fields(
    force: InnerTerms, places: Iterable[int], others: list[InnerTerms], exceptions: Exceptions, partners: Partners
) -> bool:
    """Whether the pair terms at these places are 1-4 interactions of the force field; False for a bias.

    Args:
        others: Forces with pair terms that are no biases for certain.

    Raises:
        ValueError: Where that is unknown.
    """
    pairs = {frozenset(force.terms[k]) for k in places}
    rivals = [other for other in others if other is not force and not pairs.isdisjoint(map(frozenset, other.terms))]
    plain = [other for other in rivals if not other.parameters]
    repeated = pairs.intersection(frozenset(term) for other in plain for term in other.terms)
    if force.kind == "HarmonicBondForce" or not pairs <= exceptions.incomplete:
        _refuse(force, pairs - exceptions.incomplete or pairs)
    if not force.parameters:
        if rivals and force.is_smaller(rivals):
            _refuse(force, pairs)
    elif pairs == repeated:
        log.info("%s is kept: it adds to terms of the force field and has global parameters", force.title)
        return False
    elif force.is_smaller(plain) or not _are_most(pairs | _of_allies(force, others), exceptions, partners):
        _refuse(force, pairs)
    log.info("%s has %d terms inside the ML region that are treated as 1-4 interactions", force.title, len(pairs))
    return True


def _of_allies(force: InnerTerms, others: list[InnerTerms]) -> set[Pair]:
    """Pairs of forces with which one shares a global parameter: alchemy writes several, for charges and for sterics."""
    allies = [other for other in others if not set(force.parameters).isdisjoint(other.parameters)]
    return {frozenset(term) for other in allies for term in other.terms if len(set(term)) == 2}


def _are_most(pairs: set[Pair], exceptions: Exceptions, partners: Partners) -> bool:
    """Whether they are most of the 1-4 pairs of their molecules: a bias acts on a few."""
    atoms = connected({atom for pair in pairs for atom in pair}, partners)
    possible = {pair for pair in exceptions.incomplete if pair <= atoms and not is_bonded(tuple(pair), partners)}
    return 2 * len(pairs & possible) > len(possible)


def _refuse(force: InnerTerms, pairs: set[Pair]) -> None:
    atoms = named(sorted(min(pairs, key=sorted)))
    raise ValueError(
        f"{force.title} has two-atom terms inside the ML region on nonbonded exceptions, such as atoms {atoms}, which "
        "must be either 1-4 interactions of the force field or a bias: add its name to replace if it is part of the "
        "force field, or to keep if it is a bias"
    )
