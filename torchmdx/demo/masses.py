"""Heavier hydrogens, so that a step may be longer."""

from __future__ import annotations

import dataclasses

from torchmdx.md.structure import Structure


def with_heavy_hydrogens(structure: Structure, mass: float) -> Structure:
    """The structure with hydrogens of this mass, amu, taken from the atoms that they are bonded to.

    What a thermostat samples does not depend on masses, and the fastest vibrations become slower. Raises ValueError
    where a heavy atom would be left with less than its hydrogens have.
    """
    masses = structure.masses.copy()
    for bond in structure.topology.bonds():
        for hydrogen, heavy in ((bond[0], bond[1]), (bond[1], bond[0])):
            if hydrogen.element.atomic_number == 1 and heavy.element.atomic_number != 1:
                masses[heavy.index] -= mass - masses[hydrogen.index]
                masses[hydrogen.index] = mass
    if masses.min() < mass:
        atom = int(masses.argmin())
        raise ValueError(
            f"hydrogens of {mass} amu must leave every atom as much, got {masses[atom]:.3f} for atom {atom}"
        )
    return dataclasses.replace(structure, masses=masses)
