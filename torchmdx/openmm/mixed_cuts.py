"""Bonds that a region cuts: their link atoms, and the terms of the force field that the potential then describes.

The rules are those of openmm-ml: with its link atoms the region has every angle and torsion around its own atoms, so
that the force field's are replaced; the bond across the border remains the force field's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from openmm import app, unit

from torchmdx.openmm.link_atoms import LinkAtom

Pair = frozenset[int]
LinkRequest: TypeAlias = bool | Iterable[tuple[Any, Any, Any]]
# Covalent radii of Pyykkö and Atsumi (2009), of metals and metalloids less 10 %, nm: those of openmm-ml.
_RADII = {"B": 0.077, "C": 0.075, "N": 0.071, "O": 0.063, "Si": 0.104, "P": 0.110, "S": 0.102}
_HYDROGEN = 0.032
_LEAST, _MOST = 0.05, 0.3  # nm; a distance in Å by mistake is outside


def link_atoms_of(
    topology: app.Topology, region: frozenset[int], bonds: set[Pair], request: LinkRequest
) -> tuple[LinkAtom, ...]:
    """Link atoms for the bonds that cross the border of the region; () if there are none.

    Raises ValueError, naming the atoms, and TypeError.

    Args:
        request: False refuses such bonds; True gives every link atom the sum of the covalent radii of hydrogen and of
            the inner atom as its distance; (atom, atom, distance) sets the distance at one bond, in nm or with a unit.
    """
    atoms = list(topology.atoms())
    cuts = list(_cut_bonds(region, bonds))
    if request is False:
        for inner, outer in cuts:
            raise ValueError(
                f"the ML region must not cut a covalent bond without link atoms: {label(atoms[inner])} is inside and "
                f"{label(atoms[outer])}, bonded to it, is not. Select whole molecules, or give link_atoms=True for a "
                "hydrogen at each such bond"
            )
        return ()
    lengths = {} if request is True else _distances(request)
    for pair in lengths:
        if tuple(pair) not in cuts and tuple(pair)[::-1] not in cuts:
            numbers = " and ".join(map(str, sorted(pair)))
            raise ValueError(f"link_atoms must name bonds that the ML region cuts, got atoms {numbers}")
    _require_usable(atoms, cuts)
    return tuple(LinkAtom(i, o, lengths.get(frozenset((i, o))) or _usual_distance(atoms[i])) for i, o in cuts)


def _cut_bonds(region: frozenset[int], bonds: set[Pair]) -> Iterator[tuple[int, int]]:
    """(inner, outer) of every cut bond, in the order of the atoms."""
    for bond in sorted(map(sorted, bonds)):
        inside = [index for index in bond if index in region]
        if len(inside) == 1:
            (outer,) = set(bond) - set(inside)
            yield inside[0], outer


def _distances(request: Iterable[tuple[Any, Any, Any]]) -> dict[Pair, float]:
    found: dict[Pair, float] = {}
    try:
        items = [(first, second, distance) for first, second, distance in request]
    except (TypeError, ValueError):
        raise TypeError(f"link_atoms must be True, False or several (atom, atom, distance), got {request!r}") from None
    for first, second, distance in items:
        pair = frozenset(atom.index if isinstance(atom, app.Atom) else int(atom) for atom in (first, second))
        value = float(distance.value_in_unit(unit.nanometer) if unit.is_quantity(distance) else distance)
        if not (math.isfinite(value) and _LEAST <= value <= _MOST):
            raise ValueError(
                f"the distance of a link atom must be between {_LEAST} and {_MOST} nm, got {value:g} nm for atoms "
                f"{' and '.join(map(str, sorted(pair)))}"
            )
        found[pair] = value
    return found


def _require_usable(atoms: Sequence[app.Atom], cuts: list[tuple[int, int]]) -> None:
    """Raises ValueError for a bond to hydrogen, and for an outer atom with two link atoms."""
    owners: dict[int, int] = {}
    for inner, outer in cuts:
        if app.element.hydrogen in (atoms[inner].element, atoms[outer].element):
            raise ValueError(
                f"a cut bond must be between two heavy atoms, got {label(atoms[inner])} inside and "
                f"{label(atoms[outer])} outside: move one of them across the border"
            )
        if outer in owners:
            raise ValueError(
                f"{label(atoms[outer])} outside the ML region is bonded to {label(atoms[owners[outer]])} and "
                f"{label(atoms[inner])} inside: their link atoms would be too close, include it in the region"
            )
        owners[outer] = inner


def _usual_distance(atom: app.Atom) -> float:
    symbol = None if atom.element is None else atom.element.symbol
    if symbol not in _RADII:
        raise ValueError(
            f"no distance of a link atom is known for {label(atom)}, element {symbol}: give it as link_atoms="
            f"[({atom.index}, outer atom, nm)]; elements with one are {', '.join(_RADII)}"
        )
    return round(_RADII[symbol] + _HYDROGEN, 6)


def label(atom: app.Atom) -> str:
    """An atom in a message."""
    return f"atom {atom.index} ({atom.residue.name} {atom.residue.id} {atom.name})"


@dataclass(frozen=True)
class Border:
    """Which bonded terms are inside a region with these link atoms and bonds, the cut ones included."""

    region: frozenset[int]
    links: tuple[LinkAtom, ...] = ()
    bonds: frozenset[Pair] = frozenset()

    def includes(self, term: Sequence[int], kind: str) -> bool:
        """Whether the potential describes a term. kind: "Bond", "Angle" or "Torsion"; eight atoms are a CMAP term.

        All its atoms are in the region, or with link atoms those in the middle: of an angle, of a proper torsion, of
        both torsions of a CMAP term, and the centre of an improper torsion.
        """
        if self.region.issuperset(term):
            return True
        near = self.region.union(link.outer for link in self.links)
        if not self.links or kind == "Bond" or not near.issuperset(term):
            return False
        if kind == "Angle":
            return term[1] in self.region
        if len(term) == 8:
            return self.region.issuperset((*term[1:3], *term[5:7]))
        if all(self._bonded(term[k], term[k + 1]) for k in range(3)):
            return self.region.issuperset(term[1:3])
        centres = [atom for atom in term if all(other == atom or self._bonded(atom, other) for other in term)]
        return bool(centres) and centres[0] in self.region

    def _bonded(self, first: int, second: int) -> bool:
        return frozenset((first, second)) in self.bonds
