"""Properties of a calculator's potential that ASE has no names for."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from torchmdx.evaluation.properties.descriptors import descriptors
from torchmdx.evaluation.properties.force_uncertainty import force_uncertainties
from torchmdx.evaluation.properties.hessian import hessian
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.structures.system import System


class OtherProperties:
    """Descriptors, second derivatives and uncertainties of forces, of given atoms or those of the last calculation."""

    potential: Potential | Ensemble
    charge: float | None
    atoms: Atoms | None
    _asked_about: tuple[bytes, float, bool] | None

    def get_descriptors(self, atoms: Atoms | None = None) -> NDArray[np.float64]:
        """Invariant features [N,C] of the atoms, from which the network computes their energies.

        They do not change under translation, rotation and, for models of the group O(3), reflection. For an ensemble
        the features of its members follow each other. atoms: None for those of the last calculation.
        """
        return descriptors(self.potential, self._system_of(atoms)).double().cpu().numpy()

    def get_hessian(self, atoms: Atoms | None = None, indices: Sequence[int] | None = None) -> NDArray[np.float64]:
        """Second derivatives [3n,3n] of the energy of n atoms, eV/Å², for `VibrationsData.from_2d` of ASE.

        Rows and columns are x, y, z of the first atom, of the second, ... On a CPU they are differences of float64
        forces, with an error of about 1e-7 of the largest; on a GPU derivatives of the exact model in the precision of
        the calculator: use dtype="float64" for vibrations. atoms: None for those of the last calculation. indices: of
        the atoms that move; None for all, whatever their constraints.
        """
        system = self._system_of(atoms)
        chosen = None if indices is None else np.arange(system.num_atoms)[list(indices)].tolist()
        return hessian(self.potential, system, chosen).cpu().numpy()

    def get_forces_uncertainty(self, atoms: Atoms | None = None) -> NDArray[np.float64]:
        """The uncertainty of the force on each atom [N], eV/Å, of a potential that knows its uncertainty.

        It takes a backward pass for each input of the last layer. atoms: None for those of the last calculation. Raises
        ValueError for a potential that does not know it, and for an ensemble, which has `forces_spread`.
        """
        if isinstance(self.potential, Ensemble):
            raise ValueError("get_forces_uncertainty needs a single potential, got an ensemble: use forces_spread")
        return force_uncertainties(self.potential, self._system_of(atoms)).cpu().numpy()

    def _system_of(self, atoms: Atoms | None) -> System:
        system = System.from_ase(self._given_or_last(atoms), self.charge)
        self._warn_of_doubts(system)
        return system

    def _warn_of_doubts(self, system: System) -> None:
        """Warns when composition, charge or periodicity change, not at every step of a simulation."""
        periodic = bool(system.pbc.any())
        key = (system.atomic_numbers.numpy().tobytes(), system.charge, periodic)
        if key != self._asked_about:
            self.potential.require_elements(system.atomic_numbers)  # an error takes precedence over a warning
            self._asked_about = key
            for doubt in self.potential.doubts(system.atomic_numbers.tolist(), system.charge, periodic):
                warnings.warn(doubt, stacklevel=2)

    def _given_or_last(self, atoms: Atoms | None) -> Atoms:
        if (structure := self.atoms if atoms is None else atoms) is None:
            raise ValueError("atoms must be given before the first calculation, got None")
        return structure
