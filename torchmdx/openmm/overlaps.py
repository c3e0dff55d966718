"""Warnings of energies that are counted twice: a force field or the same potential on the same atoms."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator

import openmm

from torchmdx.openmm.evaluator import ForceEvaluator
from torchmdx.openmm.find import find

STACKLEVEL = 4  # the caller of add_potential


def warn_of_overlaps(system: openmm.System, evaluator: ForceEvaluator) -> None:
    """Warns if the System, to which the potential is about to be added, already describes its atoms."""
    settings = evaluator.settings
    chosen = set(range(settings.num_particles) if settings.atoms is None else settings.atoms)
    if names := _force_field(system, chosen):
        _warn(
            f"the system already has a force field for atoms of the potential ({', '.join(names)}): both energies add "
            "up. create_mixed_system replaces the force field inside a region; an openmm.System of particles without "
            "forces is enough for add_potential"
        )
    for other in find(system):
        shared = chosen.intersection(other.atoms)
        if shared and _is_same(evaluator, other.evaluator):
            _warn(
                f"the same potential is already in the system, as force {other.force.getName()!r}, for {len(shared)} "
                "of the same atoms: its energy is counted twice"
            )


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=STACKLEVEL)


def _is_same(one: ForceEvaluator, other: ForceEvaluator) -> bool:
    if one.settings.sha256 is not None:
        return one.settings.sha256 == other.settings.sha256
    sources = [evaluator.source and evaluator.source() for evaluator in (one, other)]
    return sources[0] is not None and sources[0] is sources[1]


def _force_field(system: openmm.System, chosen: set[int]) -> list[str]:
    """Forces that show that a force field describes the atoms: bonds with angles, or nonbonded pairs."""
    bonded = {type(force).__name__ for force in system.getForces() if _has_term(force, chosen)}
    found = sorted(bonded) if len(bonded) == 2 else []
    return found + ["NonbondedForce"] * any(_has_pair(force, chosen) for force in system.getForces())


def _has_term(force: openmm.Force, chosen: set[int]) -> bool:
    if isinstance(force, openmm.HarmonicBondForce):
        return any(chosen.issuperset(force.getBondParameters(i)[:2]) for i in range(force.getNumBonds()))
    if isinstance(force, openmm.HarmonicAngleForce):
        return any(chosen.issuperset(force.getAngleParameters(i)[:3]) for i in range(force.getNumAngles()))
    return False


def _has_pair(force: openmm.Force, chosen: set[int]) -> bool:
    """Whether a NonbondedForce has a pair of chosen atoms that interact and are no exception."""
    if not isinstance(force, openmm.NonbondedForce):
        return False
    first = list(itertools.islice(_interacting(force, chosen), 2))
    if len(first) < 2:
        return False
    pairs = (frozenset(force.getExceptionParameters(index)[:2]) for index in range(force.getNumExceptions()))
    excepted = {pair for pair in pairs if pair <= chosen}
    atoms = _interacting(force, chosen)
    return any(frozenset(pair) not in excepted for pair in itertools.combinations(atoms, 2))


def _interacting(force: openmm.NonbondedForce, chosen: set[int]) -> Iterator[int]:
    for index in sorted(chosen):
        charge, _, depth = force.getParticleParameters(index)
        if charge._value or depth._value:
            yield index
