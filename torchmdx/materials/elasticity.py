"""Elastic constants from stresses under small strains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchmdx.materials.crystal import changed, relaxed, require_crystal
from torchmdx.structures.units import GPA

if TYPE_CHECKING:
    from ase import Atoms

VOIGT = ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))

SINGULAR = 1e-7  # relative eigenvalue of a stiffness


@dataclass(frozen=True, kw_only=True)
class Elasticity:
    """Elastic constants and averages over orientations, GPa.

    Attributes:
        stiffness: [6,6], ∂σᵢ/∂εⱼ in Voigt order xx, yy, zz, yz, xz, xy, shear strains as angles.
        bulk_voigt, bulk_reuss, shear_voigt, shear_reuss: Upper and lower bounds for polycrystals.
        bulk, shear, young: Voigt-Reuss-Hill averages; poisson: Poisson's ratio of these.
        stable: Whether every small strain raises the energy.
        asymmetry: The largest difference between stiffness and its transpose, GPa, an error of the result.
    """

    stiffness: list[list[float]]
    bulk_voigt: float
    bulk_reuss: float
    shear_voigt: float
    shear_reuss: float
    bulk: float
    shear: float
    young: float
    poisson: float
    stable: bool
    asymmetry: float


def elastic(atoms: Atoms, *, strain: float = 0.005, relax: bool = True, fmax: float = 0.005) -> Elasticity:
    """Elastic constants from the stresses under strains of ±strain and ±2 strain along each component.

    Args:
        atoms: With a calculator that has stresses; relaxed with their cell.
        relax: Relax the positions in each strained cell, to fmax eV/Å.

    Raises:
        ValueError: For bad settings, atoms that are no crystal, and a stiffness that is singular, as of a slab.
    """
    require_crystal(atoms)
    if not 0 < strain < 0.1:
        raise ValueError(f"strain must be > 0 and < 0.1, got {strain}")
    stiffness = np.zeros((6, 6))
    for component in range(6):
        # The five-point formula, without an error of the third order.
        for steps, weight in ((-2, 1 / 12), (-1, -8 / 12), (1, 8 / 12), (2, -1 / 12)):
            stress = _stress(atoms, component, steps * strain, relax, fmax)
            stiffness[:, component] += weight * stress / (strain * GPA)
    return averages(stiffness)


def _stress(atoms: Atoms, component: int, strain: float, relax: bool, fmax: float) -> np.ndarray:
    """[6], eV/Å³."""
    i, j = VOIGT[component]
    deformation = np.eye(3)
    if i == j:
        deformation[i, i] += strain
    else:
        deformation[i, j] = deformation[j, i] = strain / 2
    at = changed(atoms, atoms.cell.array @ deformation)
    if relax:
        relaxed(at, fmax)
    return np.asarray(at.get_stress(voigt=True))


def averages(stiffness: np.ndarray) -> Elasticity:
    """Elasticity of a stiffness [6,6], GPa, which is made symmetric. Raises ValueError for a singular one."""
    c = (stiffness + stiffness.T) / 2
    modes = np.linalg.eigvalsh(c)
    stable = bool(modes.min() > 0)
    if np.abs(modes).min() <= SINGULAR * np.abs(modes).max():
        raise ValueError(
            f"a crystal must resist every strain, got a stiffness with eigenvalues {modes.round(6).tolist()} GPa; "
            "is there vacuum in the cell?"
        )
    s = np.linalg.inv(c)
    bulk_voigt = c[:3, :3].sum() / 9
    bulk_reuss = 1 / s[:3, :3].sum()
    shear_voigt = (np.trace(c[:3, :3]) - c[0, 1] - c[0, 2] - c[1, 2] + 3 * np.trace(c[3:, 3:])) / 15
    shear_reuss = 15 / (4 * (np.trace(s[:3, :3]) - s[0, 1] - s[0, 2] - s[1, 2]) + 3 * np.trace(s[3:, 3:]))
    bulk, shear = (bulk_voigt + bulk_reuss) / 2, (shear_voigt + shear_reuss) / 2
    return Elasticity(
        stiffness=c.tolist(),
        bulk_voigt=float(bulk_voigt),
        bulk_reuss=float(bulk_reuss),
        shear_voigt=float(shear_voigt),
        shear_reuss=float(shear_reuss),
        bulk=float(bulk),
        shear=float(shear),
        young=float(9 * bulk * shear / (3 * bulk + shear)),
        poisson=float((3 * bulk - 2 * shear) / (2 * (3 * bulk + shear))),
        stable=stable,
        asymmetry=float(np.abs(stiffness - stiffness.T).max()),
    )
