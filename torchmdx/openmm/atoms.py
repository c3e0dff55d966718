"""The particles of an OpenMM system that a potential acts on, their elements and their charge."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import openmm
from openmm import app, unit

from torchmdx.structures.total_charge import checked_charge

Selected: TypeAlias = int | app.Atom | app.Residue | str
Region: TypeAlias = Iterable[Selected] | app.Atom | app.Residue | str


def require_arguments(system: Any, topology: Any) -> None:
    """Raises TypeError for a system or topology of another type, or swapped."""
    if isinstance(system, app.Topology) and isinstance(topology, openmm.System):
        raise TypeError("system and topology are swapped: the order is (system, topology, ...)")
    if not isinstance(system, openmm.System):
        raise TypeError(f"system must be an openmm.System, got {type(system).__name__}")
    if not isinstance(topology, app.Topology):
        hint = "; use its attribute topology" if hasattr(topology, "topology") else ""
        raise TypeError(f"topology must be an openmm.app.Topology, got {type(topology).__name__}{hint}")


def checked_atoms(system: openmm.System, topology: app.Topology, atoms: Region | None) -> tuple[int, ...] | None:
    """The indices of the atoms, None for all.

    Args:
        atoms: Indices, Atoms and Residues of the topology, names of residues, or a mixture of these; one of them alone;
            or a boolean mask of all atoms.

    Raises:
        TypeError: For anything else, and for atoms given twice.
        ValueError: For anything else, and for atoms given twice.
    """
    require_arguments(system, topology)
    count = system.getNumParticles()
    if topology.getNumAtoms() != count:
        raise ValueError(f"system and topology must have the same atoms, got {count} and {topology.getNumAtoms()}")
    if not count:
        raise ValueError("the system must have at least one particle, got none")
    if atoms is None:
        return None
    chosen = tuple(_indices(topology, atoms))
    if not chosen:
        raise ValueError("atoms must name at least one atom, got none")
    outside = [i for i in chosen if not 0 <= i < count]
    if outside:
        raise ValueError(f"atoms must be between 0 and {count - 1}, got {outside[0]}")
    if len(set(chosen)) < len(chosen):
        repeated = next(i for i in chosen if chosen.count(i) > 1)
        raise ValueError(f"atoms must not be repeated, got {repeated} more than once")
    return chosen


def _indices(topology: app.Topology, atoms: Any) -> list[int]:
    if isinstance(atoms, (app.Atom, app.Residue, str)):
        atoms = [atoms]
    if isinstance(atoms, app.Topology):
        raise TypeError("atoms must be indices, Atoms, Residues or names of residues, got a Topology")
    try:
        given = list(atoms)
    except TypeError:
        raise TypeError(f"atoms must be several atoms or a Residue, got {type(atoms).__name__} {atoms!r}") from None
    if given and all(isinstance(item, (bool, np.bool_)) for item in given):
        if len(given) != topology.getNumAtoms():
            raise ValueError(
                f"a mask must have one value for each of the {topology.getNumAtoms()} atoms, got {len(given)}"
            )
        return np.flatnonzero(given).tolist()
    return [index for item in given for index in _indices_of(topology, item)]


def _indices_of(topology: app.Topology, item: Any) -> Iterator[int]:
    if isinstance(item, (bool, np.bool_)):
        raise TypeError(f"atoms must be indices or a mask of booleans, got a mixture with {item}")
    if isinstance(item, str):
        yield from _of_residues(topology, item)
    elif isinstance(item, (app.Atom, app.Residue)):
        own = list(topology.atoms())
        for atom in [item] if isinstance(item, app.Atom) else item.atoms():
            if atom.index >= len(own) or not _is_same(atom, own[atom.index]):
                raise ValueError(f"{atom} is not in this topology: select it in the topology that is given")
            yield atom.index
    else:
        try:
            yield operator.index(item)
        except TypeError:
            raise TypeError(
                f"atoms must be whole numbers, Atoms, Residues or names of residues, got {item!r}"
            ) from None


def _is_same(atom: app.Atom, own: app.Atom) -> bool:
    """Whether an atom is that of the topology, or of a copy of it."""
    return atom is own or (atom.name, atom.residue.name, atom.residue.id, atom.residue.index) == (
        own.name, own.residue.name, own.residue.id, own.residue.index
    )  # fmt: skip


def _of_residues(topology: app.Topology, name: str) -> list[int]:
    found = [atom.index for residue in topology.residues() if residue.name == name for atom in residue.atoms()]
    if not found:
        names = sorted({residue.name for residue in topology.residues()})
        raise ValueError(f"atoms must name residues of the topology, {', '.join(names)}, got {name!r}")
    return found


def elements_of(topology: app.Topology, atoms: tuple[int, ...] | None) -> tuple[int, ...]:
    """Atomic numbers of the chosen atoms.

    A virtual site with an element, such as a link atom, counts as an atom: OpenMM distributes its force.

    Raises:
        ValueError: Naming the atom, where the topology has no element.
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


def charge_in_e(charge: Any) -> float:
    """A total charge given in e, or with a unit of OpenMM. Raises TypeError or ValueError."""
    if unit.is_quantity(charge):
        if not charge.unit.is_compatible(unit.elementary_charge):
            raise TypeError(f"charge must be in a unit of charge, got {charge}")
        charge = charge.value_in_unit(unit.elementary_charge)
    return checked_charge(charge)
