"""Which bonded terms inside a region belong to the force field, and which are a user's bias.

A term of the force field acts on atoms that covalent bonds connect, and its force has no global parameters. A bias is
kept where it can be recognised; where it cannot, the force is refused by name, and the user decides.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import openmm
from openmm import app

log = logging.getLogger(__name__)

Pair = frozenset[int]
# Forces whose terms on the same atoms are the same interaction, except that RBTorsionForce and PeriodicTorsionForce may
# share atoms.
_KINDS = {
    "HarmonicBondForce": "bond",
    "CustomBondForce": "bond",
    "HarmonicAngleForce": "angle",
    "CustomAngleForce": "angle",
    "PeriodicTorsionForce": "torsion",
    "RBTorsionForce": "torsion",
    "CustomTorsionForce": "torsion",
}
_NEVER_KEPT = ("NonbondedForce", "CustomNonbondedForce")


@dataclass(frozen=True)
class InnerTerms:
    """The terms of one bonded force inside the region.

    index: of the force in the System. parameters: its global parameters. terms: atoms of each term.
    """

    index: int
    kind: str
    name: str
    parameters: tuple[str, ...]
    terms: list[tuple[int, ...]]

    @property
    def title(self) -> str:
        title = self.kind if self.name in (self.kind, "") else f"{self.kind} {self.name!r}"
        return f"{title} (force {self.index})"


class Choice:
    """The user's choice for forces, by name: `keep` them whole, or `replace` their terms inside the region.

    Raises ValueError for a name that no force has, or that is in both, and for nonbonded forces to be kept.
    """

    def __init__(self, system: openmm.System, keep: Iterable[str], replace: Iterable[str]) -> None:
        self.keep, self.replace = _names("keep", keep), _names("replace", replace)
        kinds = {force.getName(): type(force).__name__ for force in system.getForces()}
        for option, names in (("keep", self.keep), ("replace", self.replace)):
            for name in sorted(names - kinds.keys()):
                raise ValueError(f"{option} must name forces of the system, {sorted(kinds)}, got {name!r}")
        for name in sorted(self.keep & self.replace):
            raise ValueError(f"a force is either kept or replaced, got {name!r} in both")
        for name in sorted(self.keep):
            if kinds[name] in _NEVER_KEPT:
                raise ValueError(f"keep must not name a {kinds[name]}: its pairs inside the region are excluded")


def _names(option: str, given: Iterable[str]) -> set[str]:
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{option} must be names of forces, got {name!r}")
    return set(names)


def covalent_bonds(system: openmm.System, topology: app.Topology) -> set[Pair]:
    """Bonds of the topology, and harmonic bonds and constraints between atoms without a nonbonded interaction.

    The second are those that a topology may lack; other harmonic bonds may be restraints.
    """
    bonds = {frozenset((bond[0].index, bond[1].index)) for bond in topology.bonds()}
    return bonds | set(_held_pairs(system)).intersection(_excluded_pairs(system))


def bonds_inside(system: openmm.System, bonds: set[Pair], region: frozenset[int]) -> set[Pair]:
    """Of the covalent bonds those inside the region; without any, all harmonic bonds and constraints inside it."""
    inside = {bond for bond in bonds if bond <= region}
    return inside or {pair for pair in _held_pairs(system) if pair <= region}


def _held_pairs(system: openmm.System) -> Iterator[Pair]:
    for index in range(system.getNumConstraints()):
        yield frozenset(system.getConstraintParameters(index)[:2])
    for force in system.getForces():
        if isinstance(force, openmm.HarmonicBondForce):
            yield from (frozenset(force.getBondParameters(index)[:2]) for index in range(force.getNumBonds()))


def _excluded_pairs(system: openmm.System) -> Iterator[Pair]:
    for force in system.getForces():
        if isinstance(force, openmm.NonbondedForce):
            for index in range(force.getNumExceptions()):
                first, second, charge, _, depth = force.getExceptionParameters(index)
                if not (charge._value or depth._value):
                    yield frozenset((first, second))
        elif isinstance(force, openmm.CustomNonbondedForce):
            yield from (frozenset(force.getExclusionParticles(index)) for index in range(force.getNumExclusions()))


def replaced_terms(forces: list[InnerTerms], bonds: set[Pair], choice: Choice) -> dict[int, set[int]]:
    """By index of the force, the places in its `terms` that belong to the force field. Raises ValueError."""
    partners = _partners(bonds)
    found: dict[int, set[int]] = {}
    bonded: dict[int, list[int]] = {}
    for force in forces:
        if force.name in choice.replace:
            found[force.index] = set(range(len(force.terms)))
        elif force.name not in choice.keep:
            bonded[force.index] = [k for k, term in enumerate(force.terms) if _is_bonded(term, partners)]
            _tell_kept(force, set(range(len(force.terms))) - set(bonded[force.index]))
    for force in forces:
        if force.index in bonded:
            is_bias = _is_bias(force, bonded[force.index], [other for other in forces if other.index in bonded])
            found[force.index] = set() if is_bias else set(bonded[force.index])
    return found


def _tell_kept(force: InnerTerms, kept: set[int]) -> None:
    if kept:
        atoms = ", ".join("-".join(map(str, force.terms[k])) for k in sorted(kept)[:3])
        log.info("%s keeps %d terms inside the ML region that follow no bonds: atoms %s", force.title, len(kept), atoms)


def _partners(bonds: set[Pair]) -> dict[int, set[int]]:
    partners: dict[int, set[int]] = {}
    for first, second in (tuple(pair) for pair in bonds if len(pair) == 2):
        partners.setdefault(first, set()).add(second)
        partners.setdefault(second, set()).add(first)
    return partners


def _is_bonded(term: tuple[int, ...], partners: dict[int, set[int]]) -> bool:
    """Whether bonds among its atoms connect them; two atoms may also be the ends of an angle (Urey-Bradley)."""
    atoms = set(term)
    if len(atoms) == 2:
        first, second = atoms
        near = partners.get(first, set())
        return second in near or bool(near & partners.get(second, set()))
    reached: set[int] = set()
    open_ends = {term[0]}
    while open_ends:
        reached |= open_ends
        open_ends = {other for atom in open_ends for other in partners.get(atom, ())} & atoms - reached
    return reached == atoms


def _is_bias(force: InnerTerms, places: list[int], forces: list[InnerTerms]) -> bool:
    """Whether a force is a bias on bonded atoms. Raises ValueError where that is unknown."""
    if not places:
        return False
    others = [other for other in forces if other is not force and _may_repeat(force, other)]
    repeated = {_ordered(term) for other in others for term in other.terms}
    atoms = [force.terms[k] for k in places if _ordered(force.terms[k]) in repeated]
    if force.parameters:
        if len(atoms) == len(places):
            log.info("%s is kept: it adds to terms of the force field and has global parameters", force.title)
            return True
        raise ValueError(
            f"{force.title} has global parameters ({', '.join(force.parameters)}) and terms inside the ML region: add "
            "its name to keep if it is a bias, or to replace if it is part of the force field"
        )
    if atoms and _is_smaller(force, others):
        raise ValueError(
            f"{force.title} and another force have terms on the same atoms of the ML region, "
            f"{'-'.join(map(str, atoms[0]))}: add its name to keep if it is a bias, or to replace if it is part of the "
            "force field"
        )
    return False


def _may_repeat(force: InnerTerms, other: InnerTerms) -> bool:
    """Whether terms of both on the same atoms are unusual in a force field."""
    kinds = _KINDS.get(force.kind), _KINDS.get(other.kind)
    if None in kinds or kinds[0] != kinds[1]:
        return False
    return force.kind == other.kind or "Custom" in force.kind or "Custom" in other.kind


def _is_smaller(force: InnerTerms, others: list[InnerTerms]) -> bool:
    """Whether a force rather than the others is the addition: custom ones first, then those with fewer terms."""
    rank = "Custom" not in force.kind, len(force.terms)
    return any(rank <= ("Custom" not in other.kind, len(other.terms)) for other in others)


def _ordered(term: tuple[int, ...]) -> tuple[int, ...]:
    return min(term, term[::-1])
