"""Nonbonded interactions inside a region of an openmm.System: removed, and optionally added back scaled."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import openmm
from openmm import unit

from torchmdx.openmm.mixed_bonded import Factor, wrapped
from torchmdx.openmm.mixed_electrostatics import LATTICE_SUMS
from torchmdx.structures import units

_COULOMB = units.COULOMB / units.KJ_PER_MOL / units.NANOMETER  # kJ/mol nm
_LENNARD_JONES = "4*epsilon*((sigma/r)^12-(sigma/r)^6)"


@dataclass(frozen=True)
class Pair:
    """The interaction of two particles of a NonbondedForce: e², nm, kJ/mol; dispersion C6 of LJPME in kJ/mol nm⁶."""

    first: int
    second: int
    charge_product: float
    sigma: float
    epsilon: float
    dispersion: float = 0.0

    @property
    def is_zero(self) -> bool:
        return not (self.charge_product or self.epsilon or self.dispersion)


def _pairs(region: frozenset[int]) -> Iterator[tuple[int, int]]:
    return combinations(sorted(region), 2)


def exclude_pairs(force: openmm.NonbondedForce, region: frozenset[int], factor: Factor | None) -> list[openmm.Force]:
    """Turns every pair inside `region` into an exception without interaction, in place.

    Returns forces with the same interactions times a factor; none if that is None. In a
    periodic system exceptions use minimum images, because a region of several molecules may be wrapped in any way.
    """
    _clear_offsets(force, region, factor)
    own_images = force.getExceptionsUsePeriodicBoundaryConditions()
    excepted = _clear_exceptions(force, region)
    known = {frozenset((pair.first, pair.second)) for pair in excepted}
    new = [pair for pair in _pairs(region) if frozenset(pair) not in known]
    direct = _direct_pairs(force, new) if factor else []
    for first, second in new:
        force.addException(first, second, 0.0, 1.0, 0.0)
    if force.usesPeriodicBoundaryConditions():
        force.setExceptionsUsePeriodicBoundaryConditions(True)
    if factor is None:
        return []
    plain = f"{_COULOMB!r}*charge_product/r+{_LENNARD_JONES}"
    forces = [
        _pair_force(_pair_expression(force), direct, factor, force.usesPeriodicBoundaryConditions()),
        _pair_force(plain, excepted, factor, own_images),
    ]
    for added, what in zip(forces, ("pairs", "exceptions"), strict=True):
        added.setForceGroup(force.getForceGroup())
        added.setName(f"{force.getName()} {what} inside the ML region")
    return [added for added in forces if added.getNumBonds()]


def _clear_offsets(force: openmm.NonbondedForce, region: frozenset[int], factor: Factor | None) -> None:
    """Sets offsets of exceptions inside the region to 0: they would restore the interaction."""
    for index in range(force.getNumExceptionParameterOffsets()):
        parameter, exception, *_ = force.getExceptionParameterOffset(index)
        if region.issuperset(force.getExceptionParameters(exception)[:2]):
            _refuse_offset(factor, parameter)
            force.setExceptionParameterOffset(index, parameter, exception, 0.0, 0.0, 0.0)
    for index in range(force.getNumParticleParameterOffsets()):
        parameter, particle, *_ = force.getParticleParameterOffset(index)
        if particle in region:
            _refuse_offset(factor, parameter)


def _refuse_offset(factor: Factor | None, parameter: str) -> None:
    if factor is not None:
        raise ValueError(
            "interpolate needs nonbonded parameters inside the ML region that are constant, "
            f"but there they depend on the global parameter {parameter!r}"
        )


def _clear_exceptions(force: openmm.NonbondedForce, region: frozenset[int]) -> list[Pair]:
    found = []
    for index in range(force.getNumExceptions()):
        first, second, *values = force.getExceptionParameters(index)
        if first in region and second in region:
            charge_product, sigma, epsilon = _numbers(values)
            found.append(Pair(first, second, charge_product, sigma, epsilon))
            force.setExceptionParameters(index, first, second, 0.0, sigma, 0.0)
    return found


def _numbers(values: list[unit.Quantity]) -> list[float]:
    return [value.value_in_unit_system(unit.md_unit_system) for value in values]


def _direct_pairs(force: openmm.NonbondedForce, pairs: list[tuple[int, int]]) -> list[Pair]:
    particles = {
        index: _numbers(force.getParticleParameters(index)) for index in {index for pair in pairs for index in pair}
    }
    has_dispersion = force.getNonbondedMethod() == openmm.NonbondedForce.LJPME
    found = []
    for first, second in pairs:
        (charge, sigma, epsilon), (other_charge, other_sigma, other_epsilon) = particles[first], particles[second]
        depth = math.sqrt(epsilon * other_epsilon)
        dispersion = 4 * depth * (sigma * other_sigma) ** 3 if has_dispersion else 0.0
        found.append(Pair(first, second, charge * other_charge, (sigma + other_sigma) / 2, depth, dispersion))
    return found


def _pair_expression(force: openmm.NonbondedForce) -> str:
    """The energy that a pair loses when it becomes an exception without interaction, kJ/mol.

    With a cutoff that is the truncated interaction, with reaction field. With a lattice sum an exception also removes
    the pair's part of the reciprocal sum, erf(αr)/r, at any distance; the direct sum, erfc(αr)/r, ends at the cutoff.
    Together they are 1/r within the cutoff and erf(αr)/r beyond.
    """
    method = force.getNonbondedMethod()
    coulomb = f"{_COULOMB!r}*charge_product/r"
    if method == openmm.NonbondedForce.NoCutoff:
        return f"{coulomb}+{_LENNARD_JONES}"
    cutoff = _number(force.getCutoffDistance())
    near = f"step({cutoff!r}-r)"
    lennard_jones = f"{_switch(force, cutoff)}*{_LENNARD_JONES}"
    if method not in LATTICE_SUMS:
        dielectric = force.getReactionFieldDielectric()
        quadratic = (dielectric - 1) / (2 * dielectric + 1) / cutoff**3
        shift = 3 * dielectric / (2 * dielectric + 1) / cutoff
        field = f"{_COULOMB!r}*charge_product*(1/r+{quadratic!r}*r^2-{shift!r})"
        return f"{near}*({field}+{lennard_jones})"
    width = _width(force.getPMEParameters, force, cutoff)
    coulomb = f"{coulomb}*select({near},1,erf({width!r}*r))"
    if method != openmm.NonbondedForce.LJPME:
        return f"{coulomb}+{near}*{lennard_jones}"
    if force.getUseSwitchingFunction():  # OpenMM's platforms disagree on its effect with LJPME
        raise ValueError("interpolate needs LJPME without a switching function, got a force with a switchDistance")
    dispersion_width = _width(force.getLJPMEParameters, force, cutoff)
    beyond = f"dispersion*{_reciprocal('r', dispersion_width)}"
    at_cutoff = f"dispersion*{_reciprocal(repr(cutoff), dispersion_width)}"
    step_down = f"4*epsilon*((sigma/{cutoff!r})^12-(sigma/{cutoff!r})^6)+{at_cutoff}"
    return f"{coulomb}+select({near},{_LENNARD_JONES}-({step_down}),-{beyond})"


def _reciprocal(r: str, width: float) -> str:
    """The part of 1/r⁶ that is in the lattice sum of LJPME, without its sign."""
    x = f"({width!r}*{r})"
    return f"(1-exp(-{x}^2)*(1+{x}^2+0.5*{x}^4))/{r}^6"


def _switch(force: openmm.NonbondedForce, cutoff: float) -> str:
    if not force.getUseSwitchingFunction():
        return "1"
    start = _number(force.getSwitchingDistance())
    x = f"(max(0,r-{start!r})/{cutoff - start!r})"
    return f"(1-{x}^3*(10-{x}*(15-6*{x})))"


def _width(parameters: Callable[[], list[Any]], force: openmm.NonbondedForce, cutoff: float) -> float:
    """α of a lattice sum in 1/nm: as set, else as OpenMM derives it from the error tolerance."""
    explicit = _number(parameters()[0])
    return explicit or math.sqrt(-math.log(2 * force.getEwaldErrorTolerance())) / cutoff


def _number(value: Any) -> float:
    return float(value.value_in_unit_system(unit.md_unit_system) if unit.is_quantity(value) else value)


def _pair_force(expression: str, pairs: list[Pair], factor: Factor, periodic: bool) -> openmm.CustomBondForce:
    force = openmm.CustomBondForce(factor.times(expression))
    factor.add_parameter(force)
    names = ["charge_product", "sigma", "epsilon"]
    if "dispersion" in expression:
        names.append("dispersion")
    for name in names:
        force.addPerBondParameter(name)
    for pair in pairs:
        if not pair.is_zero:
            force.addBond(pair.first, pair.second, [getattr(pair, name) for name in names])
    force.setUsesPeriodicBoundaryConditions(periodic)
    return force


def exclude_custom_pairs(
    force: openmm.CustomNonbondedForce, region: frozenset[int], factor: Factor | None
) -> list[openmm.Force]:
    """Excludes every pair inside `region` from a CustomNonbondedForce, in place. Returns as `exclude_pairs`."""
    scaled = copy.deepcopy(force)
    known = {frozenset(force.getExclusionParticles(index)) for index in range(force.getNumExclusions())}
    for pair in _pairs(region):
        if frozenset(pair) not in known:
            force.addExclusion(*pair)
    if factor is None or not _restrict(scaled, region):
        return []
    scaled.setUseLongRangeCorrection(False)  # `force` keeps its own, which ignores exclusions
    # Wrapped, because the nonbonded forces of one system must have the same exclusions.
    return [wrapped(scaled, factor)]


def _restrict(force: openmm.CustomNonbondedForce, region: frozenset[int]) -> bool:
    """Restricts the force to pairs inside `region`, by interaction groups. Returns whether there are any."""
    if not force.getNumInteractionGroups():
        force.addInteractionGroup(region, region)
        return True
    left = False
    for index in range(force.getNumInteractionGroups()):
        groups = [region.intersection(group) for group in force.getInteractionGroupParameters(index)]
        left |= all(groups)
        force.setInteractionGroupParameters(index, *groups)
    return left
