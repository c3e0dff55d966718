"""Formation energies of vacancies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from torchmdx.materials.crystal import changed, relaxed, require_crystal, supercell_of
from torchmdx.runtime.optional_package import require_package
from torchmdx.structures.total_charge import set_charge

if TYPE_CHECKING:
    from ase import Atoms

PRECISION = 1e-3  # Å, of symmetry


@dataclass(frozen=True, kw_only=True)
class Vacancy:
    """A missing atom.

    Attributes:
        site: Index of the atom in the given cell; symbol: its element.
        energy: Of formation, eV; unrelaxed: with all other atoms in place, eV.
        num_atoms: Of the supercell with the vacancy.
    """

    site: int
    symbol: str
    energy: float
    unrelaxed: float
    num_atoms: int


def vacancies(
    atoms: Atoms,
    *,
    supercell: tuple[int, int, int] | None = None,
    chemical_potentials: Mapping[str, float] | None = None,
    fmax: float = 0.01,
) -> list[Vacancy]:
    """Neutral vacancies at each site that symmetry does not relate to another, relaxed in a supercell of fixed shape.

    The energy of formation is E(vacancy) - E(crystal) + μ, with the chemical potential μ of the missing atom.

    Args:
        atoms: With a calculator; relaxed with their cell.
        supercell: How often the cell is repeated; None for at least 10 Å between opposite faces.
        chemical_potentials: eV by element; None takes the energy per atom, for crystals of one element.

    Raises:
        ValueError: For bad settings, atoms that are no crystal, and an element without a chemical potential.
    """
    require_crystal(atoms)
    potentials = dict(chemical_potentials or {})
    symbols = sorted(set(atoms.get_chemical_symbols()))
    if len(symbols) == 1 and not potentials:
        potentials = {symbols[0]: atoms.get_potential_energy() / len(atoms)}
    missing = [symbol for symbol in symbols if symbol not in potentials]
    if missing:
        raise ValueError(
            f"vacancies in a compound need a chemical potential of each element, eV, got none for {', '.join(missing)}"
        )
    others = [symbol for symbol in potentials if symbol not in symbols or not math.isfinite(potentials[symbol])]
    if others:
        raise ValueError(
            f"chemical potentials must be finite and of elements in the crystal ({', '.join(symbols)}), got "
            f"{', '.join(f'{potentials[symbol]:g} eV for {symbol}' for symbol in others)}"
        )
    whole = atoms.repeat(supercell_of(atoms, supercell))
    whole.calc = atoms.calc
    if len(whole) < 2:
        raise ValueError("a supercell with a vacancy needs atoms: the supercell must have at least 2, got 1")
    energy = whole.get_potential_energy()
    found = []
    for site in _sites(atoms):
        without = changed(whole)
        del without[site]
        set_charge(without, 0.0)  # whatever the charge of the missing ion
        symbol = atoms.symbols[site]
        unrelaxed = without.get_potential_energy() - energy + potentials[symbol]
        relaxed(without, fmax)
        found.append(
            Vacancy(
                site=site,
                symbol=symbol,
                energy=float(without.get_potential_energy() - energy + potentials[symbol]),
                unrelaxed=float(unrelaxed),
                num_atoms=len(without),
            )
        )
    return found


def _sites(atoms: Atoms) -> list[int]:
    """The first of each class of equivalent atoms."""
    if len(atoms) == 1:
        return [0]
    require_package("spglib", "sites need", "properties")
    from ase.spacegroup.symmetrize import check_symmetry

    data: Any = check_symmetry(atoms, symprec=PRECISION)
    if data is None:
        return list(range(len(atoms)))
    # An attribute since spglib 2.5, an item before.
    same = data.equivalent_atoms if hasattr(data, "number") else data["equivalent_atoms"]
    return [int(site) for site in np.unique(same)]
