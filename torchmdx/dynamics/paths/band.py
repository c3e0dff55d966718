"""Band: ASE's nudged elastic band, all images of which are evaluated as one batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.mep import NEB

from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.step.captured_step import CapturedStep
from torchmdx.structures.system import Batch, System


class Evaluated:
    """Structures of the same atoms, in one captured step. Raises as `CapturedStep`."""

    def __init__(
        self, structures: list[Atoms], potential: Potential | Ensemble, charge: float | None, **how: Any
    ) -> None:
        batch = Batch.from_systems([System.from_ase(atoms, charge) for atoms in structures])
        self.step = CapturedStep(potential, batch, **how)
        self._last: Any = None

    def __call__(self, structures: list[Atoms]) -> None:
        """Gives the structures their energies and forces; nothing is evaluated at the same positions again."""
        positions = np.concatenate([atoms.positions for atoms in structures])
        if self._last is not None and np.array_equal(positions, self._last):
            return
        result = self.step(positions)
        energies = np.asarray(result.energy, dtype=np.float64).reshape(-1)
        forces = np.asarray(result.forces, dtype=np.float64).reshape(len(structures), -1, 3)
        for atoms, energy, force in zip(structures, energies.tolist(), forces, strict=True):
            atoms.calc = SinglePointCalculator(atoms, energy=energy, free_energy=energy, forces=force.copy())
            atoms.calc.name = "torchmdx"
        self._last = positions


class Band(NEB):
    """A band of images, of which the first and the last do not move and have their results.

    The tangent is the improved one, and springs act along it alone (Henkelman and Jónsson, J. Chem. Phys. 113, 9978);
    a climbing image feels no spring and the reversed force along the tangent (113, 9901).
    """

    def __init__(self, images: list[Atoms], evaluated: Evaluated, spring: float) -> None:
        super().__init__(images, k=spring, method="improvedtangent", allow_shared_calculator=True)
        self.evaluated = evaluated

    def get_forces(self) -> Any:
        """Forces of the band [(M-2) N,3], from one evaluation of all images."""
        self.evaluated(self.images[1:-1])
        return super().get_forces()

    def largest_force(self) -> float:
        """The largest force of the band, eV/Å."""
        return float(np.linalg.norm(self.get_forces(), axis=1).max())
