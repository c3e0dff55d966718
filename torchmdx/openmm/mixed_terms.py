"""Which bonded terms inside a region belong to the force field, and which are a user's bias.

A term of the force field acts on atoms that covalent bonds connect, and its force has no global parameters. A bias is
kept where it can be recognised; where it cannot, the force is refused by name, and the user decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import openmm

from torchmdx.openmm.inner_terms import InnerTerms, named
from torchmdx.openmm.mixed_bonds import Pair, Partners, is_bonded, partners_of
from torchmdx.openmm.mixed_pair_terms import Exceptions, are_force_fields, is_pair_term

log = logging.getLogger(__name__)

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


class TermChoice:
    """The user's choice for forces, by name: `keep` them whole, or `replace` their terms inside the region.

    Raises:
        ValueError: For a name that no force has, or that is in both, and for nonbonded forces to be kept.
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


def replaced_terms(
    forces: list[InnerTerms], bonds: set[Pair], choice: TermChoice, exceptions: Callable[[], Exceptions]
) -> dict[int, set[int]]:
    """By index of the force, the places in its `terms` that belong to the force field. Raises ValueError.

    Args:
        exceptions: Finds those of the region, if they are needed.
    """
    partners = partners_of(bonds)
    found = {force.index: set(range(len(force.terms))) for force in forces if force.name in choice.replace}
    acting = [force for force in forces if force.name not in choice.keep]
    bonded = {force.index: [k for k, term in enumerate(force.terms) if is_bonded(term, partners)] for force in acting}
    paired = _pair_places(acting, bonded, partners, exceptions)
    others = [force for force in acting if force.index in paired]
    doubtful = [force for force in acting if force.name not in choice.replace]
    for force in doubtful:
        own, on_pairs = bonded[force.index], paired.get(force.index, [])
        _tell_kept(force, set(range(len(force.terms))).difference(own, on_pairs))
        found[force.index] = set() if _is_bias(force, own, doubtful) else set(own)
        if on_pairs and are_force_fields(force, on_pairs, others, exceptions(), partners):
            found[force.index].update(on_pairs)
    return found


def _pair_places(
    forces: list[InnerTerms], bonded: dict[int, list[int]], partners: Partners, exceptions: Callable[[], Exceptions]
) -> dict[int, list[int]]:
    """By index of the force, the places of its pair terms; forces without any have none."""
    found: dict[int, list[int]] = {}
    for force in forces:
        left = set(range(len(force.terms))).difference(bonded[force.index])
        places = [k for k in sorted(left) if len(set(force.terms[k])) == 2]
        if places := [k for k in places if is_pair_term(force.terms[k], exceptions(), partners)]:
            found[force.index] = places
    return found


def _tell_kept(force: InnerTerms, kept: set[int]) -> None:
    if kept:
        atoms = ", ".join(named(force.terms[k]) for k in sorted(kept)[:3])
        log.info("%s keeps %d terms inside the ML region that follow no bonds: atoms %s", force.title, len(kept), atoms)


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
    if atoms and force.is_smaller(others):
        raise ValueError(
            f"{force.title} and another force have terms on the same atoms of the ML region, "
            f"{named(atoms[0])}: add its name to keep if it is a bias, or to replace if it is part of the "
            "force field"
        )
    return False


def _may_repeat(force: InnerTerms, other: InnerTerms) -> bool:
    """Whether terms of both on the same atoms are unusual in a force field."""
    kinds = _KINDS.get(force.kind), _KINDS.get(other.kind)
    if None in kinds or kinds[0] != kinds[1]:
        return False
    return force.kind == other.kind or "Custom" in force.kind or "Custom" in other.kind


def _ordered(term: tuple[int, ...]) -> tuple[int, ...]:
    return min(term, term[::-1])
