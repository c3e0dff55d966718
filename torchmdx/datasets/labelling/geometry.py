"""Structures and their labels, which are sent between processes and stored in the journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from torchmdx.structures.total_charge import charge_of

if TYPE_CHECKING:
    from ase import Atoms


@dataclass(frozen=True, eq=False)
class UnlabelledStructure:
    """A structure without labels.

    numbers [N] int64, positions [N,3] float64 Å, cell [3,3] float64 Å (zeros without a cell), pbc [3] bool, charge:
    total, in e; multiplicity: 2S+1, None for the lowest that the number of electrons allows.
    """

    numbers: np.ndarray
    positions: np.ndarray
    cell: np.ndarray
    pbc: np.ndarray
    charge: float = 0.0
    multiplicity: int | None = None

    @classmethod
    def from_ase(
        cls, atoms: Atoms, charge: float | None = None, multiplicity: int | None = None
    ) -> UnlabelledStructure:
        """From ASE's atoms; arguments override the charge and multiplicity of the atoms."""
        return cls(
            numbers=np.array(atoms.numbers, np.int64),
            positions=np.array(atoms.positions, np.float64),
            cell=np.array(atoms.cell.array, np.float64),
            pbc=np.array(atoms.pbc, bool),
            charge=charge_of(atoms, charge)[0],
            multiplicity=multiplicity_of(atoms) if multiplicity is None else multiplicity,
        )

    def atoms(self) -> Atoms:
        """ASE's atoms, with `charge` and, if known, `multiplicity` in `info`."""
        from ase import Atoms

        info: dict[str, Any] = {"charge": _plain(self.charge)}
        if self.multiplicity is not None:
            info["multiplicity"] = self.multiplicity
        return Atoms(self.numbers, self.positions, cell=self.cell, pbc=self.pbc, info=info)

    def moved(self, positions: np.ndarray) -> UnlabelledStructure:
        """The same atoms at other positions."""
        return UnlabelledStructure(
            self.numbers, np.array(positions, float), self.cell, self.pbc, self.charge, self.multiplicity
        )

    def content(self) -> bytes:
        """All input of a label as bytes, for a digest."""
        state = f"{len(self.numbers)} {self.charge!r} {self.multiplicity!r}".encode()
        arrays = (self.numbers, self.positions, self.cell, self.pbc)
        return state + b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)


@dataclass(frozen=True, eq=False)
class Labels:
    """energy eV, forces [N,3] eV/Å, stress [3,3] eV/Å³ or None."""

    energy: float
    forces: np.ndarray
    stress: np.ndarray | None


def multiplicity_of(atoms: Atoms) -> int | None:
    """`info["multiplicity"]`, or None."""
    value = atoms.info.get("multiplicity")
    return None if value is None else int(value)


def _plain(charge: float) -> int | float:
    return int(charge) if float(charge).is_integer() else charge
