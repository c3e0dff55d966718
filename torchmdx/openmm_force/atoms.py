"""The particles of an OpenMM system that a potential acts on, and their elements."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import openmm
from openmm import app


def checked_atoms(system: openmm.System, topology: app.Topology, atoms: Iterable[int] | None) -> tuple[int, ...] | None:
    """The indices as a tuple, None for all. Raises ValueError for indices out of range or repeated."""
    count = system.getNumParticles()
    if topology.getNumAtoms() != count:
        raise ValueError(f"system and topology must have the same atoms, got {count} and {topology.getNumAtoms()}")
    if not count:
        raise ValueError("the system must have at least one particle, got none")
    try:
        chosen = None if atoms is None else tuple(operator.index(i) for i in atoms)
    except TypeError as error:
        raise TypeError(f"atoms must be whole numbers: {error}") from None
    if chosen is not None:
        if not chosen:
            raise ValueError("atoms must name at least one atom, got none")
        outside = [i for i in chosen if not 0 <= i < count]
        if outside:
            raise ValueError(f"atoms must be between 0 and {count - 1}, got {outside[0]}")
        if len(set(chosen)) < len(chosen):
            repeated = next(i for i in chosen if chosen.count(i) > 1)
            raise ValueError(f"atoms must not be repeated, got {repeated} more than once")
    return chosen


def elements_of(topology: app.Topology, atoms: tuple[int, ...] | None) -> tuple[int, ...]:
    """Atomic numbers of the chosen atoms. Raises ValueError, naming the atom, where the topology has no element.

    A virtual site with an element, such as a link atom, counts as an atom: OpenMM distributes its force.
    """
    every = list(topology.atoms())
    chosen = every if atoms is None else [every[i] for i in atoms]
    for atom in chosen:
        if atom.element is None:
            raise ValueError(
                f"every atom needs an element, atom {atom.index} ({atom.name} of {atom.residue.name}) of the topology "
                "has none"
            )
    return tuple(int(atom.element.atomic_number) for atom in chosen)


def is_periodic(system: openmm.System, topology: app.Topology, periodic: bool | None) -> bool:
    """Whether the potential has periodic images. Raises ValueError for periodic=True without a box."""
    has_box = system.usesPeriodicBoundaryConditions() or topology.getPeriodicBoxVectors() is not None
    if periodic and not has_box:
        raise ValueError("periodic=True needs a periodic box, but neither system nor topology has one")
    return has_box if periodic is None else bool(periodic)
