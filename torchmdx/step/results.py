"""Results and errors of a step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from ase import Atoms


class StepError(RuntimeError):
    """A step cannot be created or gives wrong results; the subclasses say why."""


class OutOfDeviceMemory(StepError):
    """The GPU has too little memory for a step; states the memory in use and what to change."""


class NonFiniteError(ArithmeticError):
    """Positions, energies or forces are NaN or infinite; names the evaluation and the atoms."""


class AuditError(StepError):
    """The fast path and the exact model disagree."""


class GraphRefused(StepError):
    """mode="graph" was requested, but no graph can be used; says why."""


@dataclass(frozen=True, eq=False)
class Frame:
    """A structure with its results, as NumPy arrays; eV and Å.

    Of an ensemble it has energy_spread and force_spread [N]; of a single potential energy_uncertainty and
    energies_uncertainty [N].
    """

    numbers: NDArray[np.int64]
    positions: NDArray[np.float64]
    cell: NDArray[np.float64]
    pbc: NDArray[np.bool_]
    charge: float
    energy: float
    forces: NDArray[np.float64]
    energy_spread: float | None = None
    force_spread: NDArray[np.float64] | None = None
    energy_uncertainty: float | None = None
    energies_uncertainty: NDArray[np.float64] | None = None

    def to_ase(self) -> Atoms:
        """ASE atoms with energy and forces as results, what belongs to atoms in arrays, and the rest in info.

        The array of the spreads is `forces_spread`, that of uncertainties `energies_uncertainty`.
        """
        from ase import Atoms
        from ase.calculators.singlepoint import SinglePointCalculator

        atoms = Atoms(self.numbers, self.positions, cell=self.cell, pbc=self.pbc)
        doubts = {"energy_spread": self.energy_spread, "energy_uncertainty": self.energy_uncertainty}
        atoms.info |= {"charge": self.charge, **{name: x for name, x in doubts.items() if x is not None}}
        arrays = {"forces_spread": self.force_spread, "energies_uncertainty": self.energies_uncertainty}
        atoms.arrays |= {name: values for name, values in arrays.items() if values is not None}
        atoms.calc = SinglePointCalculator(atoms, energy=self.energy, forces=self.forces)
        return atoms


class SpreadError(StepError):
    """The force spread of an ensemble exceeds its limit.

    Args:
        frame: The structure and its results.
        atom: Index of the atom with the largest spread, in the caller's order.
        most: The limit, eV/Å.
        step: Of a run that it ends, None otherwise.
        structure: Index of the structure in the batch.
    """

    def __init__(
        self,
        text: str,
        frame: Frame | None = None,
        atom: int = -1,
        *,
        most: float = math.nan,
        step: int | None = None,
        structure: int = 0,
    ) -> None:
        super().__init__(text)
        self.frame, self.atom, self.most, self.step, self.structure = frame, atom, most, step, structure


class UncertaintyError(SpreadError):
    """The uncertainty of the energy of an atom exceeds its limit, in eV; arguments as for SpreadError."""


@dataclass(frozen=True, eq=False)
class StepResult:
    """energy [S] eV, forces [N,3] eV/Å, energies [N] eV, stress [S,3,3] eV/Å³ (NaN without a volume), all float64.

    For an ensemble these are means over its members, and energy_spread [S] eV and force_spread [N] eV/Å are the
    standard deviations. A single potential whose uncertainty is wanted has energy_uncertainty [S] eV and
    energies_uncertainty [N] eV. All are NumPy arrays if positions were given as an array or a CPU tensor, and CUDA
    tensors if positions were a CUDA tensor.
    """

    energy: Any
    forces: Any
    energies: Any = None
    stress: Any = None
    energy_spread: Any = None
    force_spread: Any = None
    energy_uncertainty: Any = None
    energies_uncertainty: Any = None

    @classmethod
    def of(cls, values: Mapping[str, Any], copy: bool) -> StepResult:
        """From arrays or tensors by name, without `flags`; copy: copies them."""
        own = {name: value for name, value in values.items() if name != "flags"}
        if copy:
            own = {name: value.clone() if isinstance(value, Tensor) else value.copy() for name, value in own.items()}
        return cls(**own)
