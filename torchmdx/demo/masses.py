"""Hydrogen mass repartitioning, for longer timesteps."""

from __future__ import annotations

import dataclasses

from torchmdx.md.structure import Structure


def with_heavy_hydrogens(structure: Structure, mass: float) -> Structure:
    """The structure with hydrogens of this mass, amu, which is taken from the atoms they are bonded to.

    The sampled distribution does not depend on masses, and the fastest vibrations become slower. Raises ValueError if
    a heavy atom would be left with less than the mass of a hydrogen.
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
            f"every heavy atom must keep at least the hydrogen mass of {mass} amu, got {masses[atom]:.3f} for "
            f"atom {atom}"
        )
    return dataclasses.replace(structure, masses=masses)
