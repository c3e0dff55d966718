"""A restraint of a guest's position and orientation with respect to its host, whose free energy is known exactly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import openmm
from numpy.typing import NDArray
from openmm import unit

Floats = NDArray[np.float64]

STANDARD_VOLUME = 1.66053906717  # nm³ for a molecule at 1 mol/l
DISTANCE_CONSTANT, ANGLE_CONSTANT = 4184.0, 41.84  # kJ/mol/nm² and kJ/mol/rad²: 10 kcal/mol/Å² and 10 kcal/mol/rad²
CLOSEST = 5.0  # kT, least energy of an angle of 0 or 180 degrees, where torsions are not defined
STRAIGHT = 0.2  # least sine of the angle of three anchors
_POINTS = 20001
# Terms by name: anchors, h of the host and g of the guest, in the order of OpenMM's functions.
_TERMS = {
    "distance": ("h1", "g1"),
    "angle_host": ("h2", "h1", "g1"),
    "angle_guest": ("h1", "g1", "g2"),
    "torsion_host": ("h3", "h2", "h1", "g1"),
    "torsion_both": ("h2", "h1", "g1", "g2"),
    "torsion_guest": ("h1", "g1", "g2", "g3"),
}
_ENERGIES = {2: "0.5*kd*(distance({})-{})^2", 3: "0.5*ka*(angle({})-{})^2", 4: "0.5*ka*min({0},2*pi-{0})^2"}


class BoreschRestraint:
    """Harmonic terms in the distance, two angles and three torsions of three anchors in each of host and guest.

    S. Boresch et al., J. Phys. Chem. B 107, 9535 (2003). For absolute binding free energies: it keeps a decoupled guest
    in its pose. Its own free energy there is an integral over six independent coordinates, whatever the guest. With
    fewer anchors the terms that need the others are left out: one of each is a restraint of the distance.

    Example::

        restraint = BoreschRestraint(host=(1, 4, 5), guest=(15, 14, 16), positions=positions, temperature=300)
        restraint.add_to(system)  # scaled by the global parameter lambda_restraint, initially 1
        restraint.standard_free_energy  # kJ/mol

    Args:
        host, guest: Indices of one to three atoms each, first those whose distance is restrained.
        positions: Of all particles, in the bound pose and whole, which is the minimum; nm or with a unit.
        temperature: K, or with a unit.
        distance_constant: kJ/mol/nm². angle_constant: kJ/mol/rad², for torsions as well.

    Attributes:
        values: Values of the minimum by name, nm and rad.
        standard_free_energy: Of the restraint for a decoupled guest, kJ/mol: from a free guest at 1 mol/l to the
            restrained one, kT ln(8π² V° / Z).

    Raises:
        ValueError: For other numbers of anchors, repeated ones, anchors on a line, and angles so close to 0 or 180
            degrees that the restraint lets them reach it.
    """

    def __init__(
        self,
        *,
        host: Sequence[int],
        guest: Sequence[int],
        positions: Any,
        temperature: Any,
        distance_constant: float = DISTANCE_CONSTANT,
        angle_constant: float = ANGLE_CONSTANT,
    ) -> None:
        self.host, self.guest = tuple(map(int, host)), tuple(map(int, guest))
        self._constants = _positive("distance_constant", distance_constant), _positive("angle_constant", angle_constant)
        self._thermal = _thermal(temperature)
        self._anchors = {f"h{k + 1}": index for k, index in enumerate(self.host)}
        self._anchors |= {f"g{k + 1}": index for k, index in enumerate(self.guest)}
        places = _places(positions, self.host, self.guest)
        self.values = {
            term: _value([places[self._anchors[anchor]] for anchor in anchors])
            for term, anchors in _TERMS.items()
            if set(anchors) <= set(self._anchors)
        }
        for kind, own in (("host", self.host), ("guest", self.guest)):
            _require_bent(kind, own, places)
        for name in ("angle_host", "angle_guest"):
            self._require_far_from_straight(name)

    @property
    def standard_free_energy(self) -> float:
        volume = self._integral("distance", 2, 1.0)
        for name, power, free in (
            ("angle_host", 1, 2.0),
            ("angle_guest", 1, 2.0),
            ("torsion_host", 0, 2 * math.pi),
            ("torsion_both", 0, 2 * math.pi),
            ("torsion_guest", 0, 2 * math.pi),
        ):
            volume *= self._integral(name, power, free)
        return self._thermal * math.log(8 * math.pi**2 * STANDARD_VOLUME / volume)

    def add_to(self, system: openmm.System, parameter: str = "lambda_restraint") -> openmm.CustomCompoundBondForce:
        """Adds the restraint to a System, before or after `create_mixed_system`. Returns the force.

        parameter: name of a global parameter, initially 1, that multiplies its energy.
        """
        order = list(self._anchors)
        terms, differences = [], []
        for name, value in self.values.items():
            points = ",".join(f"p{order.index(anchor) + 1}" for anchor in _TERMS[name])
            kind = len(_TERMS[name])
            if kind == 4:
                terms.append(_ENERGIES[4].format(name))
                differences.append(f"{name}=abs(dihedral({points})-({value!r}))")
            else:
                terms.append(_ENERGIES[kind].format(points, repr(value)))
        expression = ";".join([f"{parameter}*({'+'.join(terms)})", *differences, f"pi={math.pi!r}"])
        force = openmm.CustomCompoundBondForce(len(order), expression)
        force.addGlobalParameter(parameter, 1.0)
        force.addPerBondParameter("kd")
        force.addPerBondParameter("ka")
        force.addBond(list(self._anchors.values()), self._constants)
        force.setUsesPeriodicBoundaryConditions(system.usesPeriodicBoundaryConditions())
        force.setName("BoreschRestraint")
        system.addForce(force)
        return force

    def _integral(self, name: str, power: int, free: float) -> float:
        """∫ exp(-βU) over a coordinate with its Jacobian, x² or sin x; `free` without the term."""
        if name not in self.values:
            return free
        value, constant = self.values[name], self._constants[power != 2]
        width = math.sqrt(self._thermal / constant)
        if power == 0:  # a torsion: the same everywhere
            return math.sqrt(2 * math.pi) * width * math.erf(math.pi / width / math.sqrt(2))
        ends = max(value - 12 * width, 0.0), value + 12 * width
        x = np.linspace(ends[0], min(ends[1], math.pi) if power == 1 else ends[1], _POINTS)
        jacobian = x**2 if power == 2 else np.sin(x)
        heights = jacobian * np.exp(-0.5 * ((x - value) / width) ** 2)
        return float(((heights[1:] + heights[:-1]) / 2 * np.diff(x)).sum())

    def _require_far_from_straight(self, name: str) -> None:
        if name not in self.values:
            return
        value = self.values[name]
        energy = 0.5 * self._constants[1] * min(value, math.pi - value) ** 2
        if energy < CLOSEST * self._thermal:
            raise ValueError(
                f"{name} must be so far from 0 and 180 degrees that they cost {CLOSEST:g} kT, got "
                f"{math.degrees(value):.1f} degrees, {energy / self._thermal:.1f} kT: choose other anchors or a larger "
                "angle_constant"
            )


def _positive(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be > 0 and finite, got {value}")
    return float(value)


def _thermal(temperature: Any) -> float:
    """kT, kJ/mol."""
    kelvin = temperature.value_in_unit(unit.kelvin) if unit.is_quantity(temperature) else float(temperature)
    constant = unit.MOLAR_GAS_CONSTANT_R.value_in_unit(unit.kilojoule_per_mole / unit.kelvin)
    return float(constant * _positive("temperature", kelvin))


def _places(positions: Any, host: tuple[int, ...], guest: tuple[int, ...]) -> dict[int, Floats]:
    """Positions of the anchors, nm. Raises ValueError for wrong anchors."""
    own = np.asarray(positions.value_in_unit(unit.nanometer) if unit.is_quantity(positions) else positions, np.float64)
    for kind, indices in (("host", host), ("guest", guest)):
        if not 1 <= len(indices) <= 3:
            raise ValueError(f"{kind} must have one to three anchors, got {len(indices)}")
    anchors = host + guest
    if len(set(anchors)) < len(anchors):
        raise ValueError(f"anchors must be distinct atoms, got {host} and {guest}")
    if min(anchors) < 0 or max(anchors) >= len(own):
        raise ValueError(f"anchors must be indices of the {len(own)} positions, got {host} and {guest}")
    return {index: own[index] for index in anchors}


def _require_bent(kind: str, anchors: tuple[int, ...], places: dict[int, Floats]) -> None:
    if len(anchors) < 3:
        return
    angle = _value([places[index] for index in anchors])
    if math.sin(angle) < STRAIGHT:
        raise ValueError(
            f"the anchors of the {kind} must not be on a line, got an angle of {math.degrees(angle):.1f} degrees: "
            "choose other atoms"
        )


def _value(points: list[Floats]) -> float:
    """The distance, angle or torsion of two, three or four points, with the sign of OpenMM."""
    steps = [b - a for a, b in itertools.pairwise(points)]
    if len(steps) == 1:
        return float(np.linalg.norm(steps[0]))
    if len(steps) == 2:
        first, second = (each / np.linalg.norm(each) for each in steps)
        return float(np.arccos(np.clip(-first @ second, -1.0, 1.0)))
    normals = np.cross(steps[0], steps[1]), np.cross(steps[1], steps[2])
    sine = np.linalg.norm(steps[1]) * steps[0] @ normals[1]
    return float(np.arctan2(sine, normals[0] @ normals[1]))
