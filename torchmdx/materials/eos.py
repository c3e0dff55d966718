"""The equation of state: energies at several volumes, fitted by the Birch-Murnaghan equation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchmdx.materials.crystal import changed, relaxed, require_crystal
from torchmdx.structures.units import GPA

if TYPE_CHECKING:
    from ase import Atoms


@dataclass(frozen=True, kw_only=True)
class EquationOfState:
    """Per cell of the given structure.

    Attributes:
        volume: Of the minimum, Å³; energy: there, eV.
        bulk_modulus: GPa; derivative: its derivative with respect to pressure.
        volumes, energies: The points, Å³ and eV.
        residual: The root mean square of the fit, eV.
    """

    volume: float
    energy: float
    bulk_modulus: float
    derivative: float
    volumes: list[float]
    energies: list[float]
    residual: float


def equation_of_state(
    atoms: Atoms, *, span: float = 0.06, points: int = 9, relax: bool = True, fmax: float = 0.01
) -> EquationOfState:
    """Fits the third-order Birch-Murnaghan equation to energies at volumes around that of the atoms.

    Args:
        atoms: With a calculator.
        span: The largest relative change of the volume.
        relax: Relax the positions at each volume, to fmax eV/Å; the shape of the cell is kept.

    Raises:
        ValueError: For bad settings, atoms that are no crystal, and a minimum outside of the volumes.
    """
    from ase.eos import EquationOfState as Fit
    from ase.eos import birchmurnaghan

    require_crystal(atoms)
    if points < 5:
        raise ValueError(f"points must be >= 5, got {points}")
    if not 0 < span < 0.5:
        raise ValueError(f"span must be > 0 and < 0.5, got {span}")
    volumes, energies = [], []
    for ratio in np.linspace(1 - span, 1 + span, points):
        at = changed(atoms, atoms.cell.array * ratio ** (1 / 3))
        if relax:
            relaxed(at, fmax)
        volumes.append(float(at.get_volume()))
        energies.append(float(at.get_potential_energy()))
    lowest = int(np.argmin(energies))
    if lowest in (0, points - 1):
        raise ValueError(
            f"the minimum must lie between {volumes[0]:.3f} and {volumes[-1]:.3f} Å³, the energy is lowest at "
            f"{volumes[lowest]:.3f} Å³: relax the cell first, or raise the span"
        )
    fit = Fit(volumes, energies, eos="birchmurnaghan")
    volume, energy, modulus = fit.fit()
    fitted = birchmurnaghan(np.array(volumes), *fit.eos_parameters)
    return EquationOfState(
        volume=float(volume),
        energy=float(energy),
        bulk_modulus=float(modulus) / GPA,
        derivative=float(fit.eos_parameters[2]),
        volumes=volumes,
        energies=energies,
        residual=float(np.sqrt(np.mean((fitted - energies) ** 2))),
    )
