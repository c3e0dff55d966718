"""The refinement of a transition state by ASE's dimer method."""

from __future__ import annotations

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator as AseCalculator
from ase.calculators.singlepoint import SinglePointCalculator
from ase.mep import DimerControl, MinModeAtoms, MinModeTranslate
from numpy.typing import NDArray

from torchmdx.dynamics.relaxation.tasks import free_coordinates

MOST_TRAVEL = 1.0  # Å, of an atom: farther away is another saddle


def refined(
    start: Atoms, mode: NDArray[np.float64], calculator: AseCalculator, fmax: float, steps: int
) -> tuple[Atoms, float]:
    """The saddle near a structure, with energy and forces, and the curvature along its unstable mode, eV/Å².

    Args:
        mode: [N,3], an estimate of the unstable mode, such as the tangent of a path.

    Raises:
        ValueError: If the method does not converge, moves an atom far, or ends where nothing is unstable.
    """
    atoms = start.copy()
    atoms.calc = calculator
    free = np.asarray(free_coordinates(start).all(1))
    along = np.where(free[:, None], mode, 0.0)
    along /= np.linalg.norm(along)  # ASE does not, and its curvature would have the wrong scale
    control = DimerControl(logfile=None, mask=free.tolist(), initial_eigenmode_method="displacement", max_num_rot=8)
    dimer = MinModeAtoms(atoms, control, eigenmodes=[along])
    with MinModeTranslate(dimer, logfile=None) as search:
        converged = search.run(fmax=fmax, steps=steps)
    moved = float(np.linalg.norm(atoms.positions - start.positions, axis=1).max())
    largest = float(np.linalg.norm(atoms.get_forces(), axis=1).max())
    if not converged:
        raise ValueError(f"the transition state did not converge to {fmax} eV/Å in {steps} steps: {largest:.3g} eV/Å")
    if moved > MOST_TRAVEL:
        raise ValueError(
            f"the refinement must stay within {MOST_TRAVEL:g} Å of the highest image, an atom moved by {moved:.3g} Å; "
            "converge the path first, with more images or a smaller fmax"
        )
    curvature = float(dimer.get_curvature())
    if curvature >= 0:
        raise ValueError(f"a transition state has a negative curvature, got {curvature:.3g} eV/Å²")
    found = start.copy()
    found.set_positions(atoms.positions, apply_constraint=False)
    energy = float(atoms.get_potential_energy())
    forces = atoms.get_forces(apply_constraint=False)
    found.calc = SinglePointCalculator(found, energy=energy, free_energy=energy, forces=forces)
    return found, curvature
