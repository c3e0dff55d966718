"""Bonded terms inside a region of an openmm.System: removed, and optionally added back with a scale factor.

OpenMM cannot remove single terms of a force, so terms are selected in the serialised system, which leaves everything
else (names, groups, order of the forces, parameters, tables) unchanged.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from xml.etree import ElementTree

import openmm

from torchmdx.openmm.inner_terms import InnerTerms
from torchmdx.openmm.mixed_cuts import Border
from torchmdx.openmm.mixed_pair_terms import Exceptions
from torchmdx.openmm.mixed_terms import TermChoice, replaced_terms

BONDED = {
    "HarmonicBondForce",
    "HarmonicAngleForce",
    "PeriodicTorsionForce",
    "RBTorsionForce",
    "CMAPTorsionForce",
    "CustomBondForce",
    "CustomAngleForce",
    "CustomTorsionForce",
    "CustomCompoundBondForce",
}
# Forces with an equivalent custom force; parameters in the order of get...Parameters.
_AS_CUSTOM = {
    "HarmonicBondForce": ("Bond", "0.5*stiffness*(r-length)^2", ("length", "stiffness")),
    "HarmonicAngleForce": ("Angle", "0.5*stiffness*(theta-angle)^2", ("angle", "stiffness")),
    "PeriodicTorsionForce": ("Torsion", "barrier*(1+cos(period*theta-phase))", ("period", "phase", "barrier")),
    "RBTorsionForce": (
        "Torsion",
        "c0+u*(c1+u*(c2+u*(c3+u*(c4+u*c5)))); u=-cos(theta)",
        ("c0", "c1", "c2", "c3", "c4", "c5"),
    ),
}
_NUM_PARTICLES = {"Bond": 2, "Angle": 3, "Torsion": 4}
_PARTICLE = re.compile(r"[pab]\d+")  # p1, p2, ...; a1 ... b4 of a CMAP term


@dataclass(frozen=True)
class SeparatedBonded:
    """A copy of a system without the bonded terms inside a region, and those terms as forces of their own.

    Attributes:
        held: Pairs of atoms at the ends of a removed bond or angle, which can replace a constraint.
    """

    system: openmm.System
    removed: list[openmm.Force]
    held: set[frozenset[int]]


def separate_bonded(
    system: openmm.System, border: Border, bonds: set[frozenset[int]], choice: TermChoice
) -> SeparatedBonded:
    """Separates the force field's bonded terms inside the border of a region from a copy of `system`.

    Raises:
        ValueError: For a force that may be a bias or a part of the force field.
    """
    root = ElementTree.fromstring(openmm.XmlSerializer.serialize(system))
    elements = root.findall("./Forces/Force")
    inner = [_inner_terms(index, element, border) for index, element in enumerate(elements)]
    found = [terms for terms in inner if terms is not None]
    exceptions = functools.cache(lambda: Exceptions.of(system, border.region))
    replaced = replaced_terms(found, bonds, choice, exceptions)
    removed: list[openmm.Force] = []
    held: set[frozenset[int]] = set()
    for index, places in replaced.items():
        if not places:
            continue
        element = elements[index]
        kept, inside = _sort(element, border, places)
        held |= {frozenset((_particles(term)[0], _particles(term)[-1])) for term in inside if term.tag != "Torsion"}
        _set_terms(element, inside)
        removed.append(openmm.XmlSerializer.deserialize(_text(element)))
        _set_terms(element, kept)
    return SeparatedBonded(openmm.XmlSerializer.deserialize(_text(root)), removed, held)


def bonds_without_energy(bonds: set[frozenset[int]]) -> openmm.CustomBondForce:
    """Bonds that only tell OpenMM which atoms are a molecule.

    Without the force field's bonds each atom of a region would be a molecule of its own. Barostats scale distances
    between molecules, and positions are wrapped into the box molecule by molecule.
    """
    force = openmm.CustomBondForce("0*r")
    for first, second in sorted(map(sorted, bonds)):
        force.addBond(first, second, [])
    force.setName("bonds of the ML region, without energy")
    return force


def _terms(element: ElementTree.Element) -> ElementTree.Element:
    (found,) = [child for child in element if child.tag in ("Bonds", "Angles", "Torsions")]
    return found


def _inner_terms(index: int, element: ElementTree.Element, border: Border) -> InnerTerms | None:
    """None for a force that is not BONDED or has no terms inside the region."""
    kind = element.get("type", "")
    if kind not in BONDED:
        return None
    terms = [atoms for term in _terms(element) if border.includes(atoms := _particles(term), term.tag)]
    parameters = tuple(parameter.attrib["name"] for parameter in element.findall("./GlobalParameters/Parameter"))
    return InnerTerms(index, kind, element.get("name", ""), parameters, list(map(tuple, terms))) if terms else None


def _sort(
    element: ElementTree.Element, border: Border, places: set[int]
) -> tuple[list[ElementTree.Element], list[ElementTree.Element]]:
    """Terms that stay, and those of the terms inside the region that are at the given places."""
    kept: list[ElementTree.Element] = []
    removed: list[ElementTree.Element] = []
    place = 0
    for term in _terms(element):
        is_inside = border.includes(_particles(term), term.tag)
        (removed if is_inside and place in places else kept).append(term)
        place += is_inside
    return kept, removed


def _particles(term: ElementTree.Element) -> list[int]:
    names = sorted(
        (name for name in term.attrib if _PARTICLE.fullmatch(name)), key=lambda name: (name[0], int(name[1:]))
    )
    return [int(term.attrib[name]) for name in names]


def _set_terms(element: ElementTree.Element, terms: list[ElementTree.Element]) -> None:
    _terms(element)[:] = terms


def _text(element: ElementTree.Element) -> str:
    return ElementTree.tostring(element, encoding="unicode")


@dataclass(frozen=True)
class Factor:
    """What multiplies the removed terms: 1 - parameter; with is_difference, -parameter, or -1 without a parameter."""

    parameter: str | None
    is_difference: bool = False

    @classmethod
    def of(cls, interpolate: str | None, difference_group: int | None) -> Factor | None:
        """None if the removed terms are not added back."""
        if interpolate is None and difference_group is None:
            return None
        return cls(interpolate, difference_group is not None)

    @property
    def expression(self) -> str:
        if self.parameter is None:
            return "(-1)"
        return f"(-{self.parameter})" if self.is_difference else f"(1-{self.parameter})"

    def times(self, expression: str) -> str:
        """The factor times an energy expression of OpenMM. Raises ValueError if that already uses the parameter."""
        if self.parameter is not None and re.search(rf"\b{re.escape(self.parameter)}\b", expression):
            raise ValueError(
                f"interpolate must be a name that no energy expression uses, got {self.parameter!r}: {expression}"
            )
        energy, separator, definitions = expression.partition(";")
        return f"{self.expression}*({energy}){separator}{definitions}"

    def add_parameter(self, force: openmm.Force) -> None:
        if self.parameter is not None:
            force.addGlobalParameter(self.parameter, 1.0)


def scale(force: openmm.Force, factor: Factor) -> openmm.Force:
    """A force with a factor times the energy of `force`, one of BONDED; a custom `force` is changed in place."""
    kind = type(force).__name__
    if kind in _AS_CUSTOM:
        return _as_custom(force, factor, *_AS_CUSTOM[kind])
    if kind == "CMAPTorsionForce":
        return wrapped(force, factor)
    force.setEnergyFunction(factor.times(force.getEnergyFunction()))
    return _finished(force, force, factor)


def wrapped(force: openmm.Force, factor: Factor) -> openmm.CustomCVForce:
    """A factor times any force, in a CustomCVForce: slower than a scaled expression."""
    scaled = openmm.CustomCVForce(factor.times("energy"))
    scaled.addCollectiveVariable("energy", force)
    return _finished(scaled, force, factor)


def _finished(scaled: openmm.Force, original: openmm.Force, factor: Factor) -> openmm.Force:
    factor.add_parameter(scaled)
    scaled.setForceGroup(original.getForceGroup())
    scaled.setName(f"{original.getName()} inside the ML region")
    return scaled


def _as_custom(force: openmm.Force, factor: Factor, term: str, expression: str, names: tuple[str, ...]) -> openmm.Force:
    scaled = getattr(openmm, f"Custom{term}Force")(factor.times(expression))
    for name in names:
        getattr(scaled, f"addPer{term}Parameter")(name)
    count = _NUM_PARTICLES[term]
    for index in range(getattr(force, f"getNum{term}s")()):
        values = getattr(force, f"get{term}Parameters")(index)
        getattr(scaled, f"add{term}")(*values[:count], values[count:])
    scaled.setUsesPeriodicBoundaryConditions(force.usesPeriodicBoundaryConditions())
    return _finished(scaled, force, factor)
