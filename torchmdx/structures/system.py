"""System: one validated structure. Batch: several of them, concatenated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from torchmdx.structures.cell import require_lattice
from torchmdx.structures.system_fields import (
    array_of,
    flags,
    floats,
    moved,
    require_fields,
    require_order,
    whole_numbers,
)
from torchmdx.structures.total_charge import charge_of, checked_charge

if TYPE_CHECKING:
    from ase import Atoms


@dataclass(frozen=True, eq=False)
class System:
    """One structure: positions [N,3] Å, atomic_numbers [N] int64, cell [3,3] Å, pbc [3] bool, total charge in e.

    partial_charges [N] e are for potentials that take the charges of atoms as given. Fields are tensors on one device;
    positions and cell have the same floating dtype. `System.create` and `System.from_ase` validate all values; the
    constructor checks shapes and dtypes. Raises ValueError or TypeError that name the requirement and the value.
    """

    positions: Tensor
    atomic_numbers: Tensor
    cell: Tensor
    pbc: Tensor
    charge: float = 0.0
    partial_charges: Tensor | None = None

    def __post_init__(self) -> None:
        wanted = {"positions": (self.num_atoms, 3), "atomic_numbers": (self.num_atoms,), "cell": (3, 3), "pbc": (3,)}
        if self.partial_charges is not None:
            wanted["partial_charges"] = (self.num_atoms,)
        require_fields(self, "system", wanted)
        if self.cell.dtype != self.positions.dtype:
            raise TypeError(
                f"positions and cell of a system must have one dtype, got {self.positions.dtype} and {self.cell.dtype}"
            )

    @classmethod
    def create(
        cls,
        positions: ArrayLike | Tensor,
        atomic_numbers: ArrayLike | Tensor,
        cell: ArrayLike | Tensor | None = None,
        pbc: ArrayLike | Tensor | bool | None = None,
        charge: float = 0.0,
        partial_charges: ArrayLike | Tensor | None = None,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> System:
        """A System from arrays or tensors. Raises ValueError or TypeError that name the requirement and the value."""
        if cell is None and pbc is not None and bool(np.any(array_of(pbc))):
            raise ValueError("a periodic system needs a cell, got pbc without cell")
        if cell is not None and pbc is None:
            raise ValueError("pbc must be given with a cell: True, False or one value for each lattice vector")
        numbers = whole_numbers(atomic_numbers)
        count = len(numbers)
        given = None
        if partial_charges is not None:
            given = floats("partial_charges", partial_charges, (count,), dtype, device)
        system = cls(
            positions=floats("positions", positions, (count, 3), dtype, device),
            atomic_numbers=torch.as_tensor(numbers, device=device),
            cell=floats("cell", np.zeros((3, 3)) if cell is None else cell, (3, 3), dtype, device),
            pbc=torch.as_tensor(flags(pbc), device=device),
            charge=checked_charge(charge),
            partial_charges=given,
        )
        require_lattice(system.cell[None].double(), system.pbc[None])
        return system

    @classmethod
    def from_ase(
        cls,
        atoms: Atoms,
        charge: float | None = None,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> System:
        """A System from ASE Atoms. Charge: the argument, else as `charge_of` (total_charge.py), else 0.

        ASE's initial charges, if set, become its partial_charges.
        """
        charge, _ = charge_of(atoms, charge)
        given = atoms.get_initial_charges() if atoms.has("initial_charges") else None
        return cls.create(
            atoms.positions, atoms.numbers, atoms.cell.array, atoms.pbc, charge, given, dtype=dtype, device=device
        )

    @property
    def num_atoms(self) -> int:
        return self.positions.shape[0]

    def at(self, positions: ArrayLike | Tensor) -> System:
        """The same structure at other positions [N,3] Å."""
        old = self.positions
        return replace(self, positions=floats("positions", positions, tuple(old.shape), old.dtype, old.device))

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> System:
        """The same structure on another device or in another floating dtype."""
        return replace(
            self,
            positions=self.positions.to(device=device, dtype=dtype),
            atomic_numbers=self.atomic_numbers.to(device=device),
            cell=self.cell.to(device=device, dtype=dtype),
            pbc=self.pbc.to(device=device),
            partial_charges=None if self.partial_charges is None else moved(self.partial_charges, device, dtype),
        )


@dataclass(frozen=True, eq=False)
class Batch:
    """Several systems, concatenated: N atoms of S systems; the atoms of a system are contiguous.

    A system may be empty. The constructor checks shapes and dtypes, and on a CPU the order of system_index; `of` also
    checks that of a GPU.

    Attributes:
        positions: [N,3] Å.
        atomic_numbers: [N].
        system_index: [N] int64, ascending.
        cell: [S,3,3] Å.
        pbc: [S,3] bool.
        charge: [S], of the dtype of positions.
        partial_charges: [N], given by all systems or by none.
    """

    positions: Tensor
    atomic_numbers: Tensor
    system_index: Tensor
    cell: Tensor
    pbc: Tensor
    charge: Tensor
    partial_charges: Tensor | None = None

    def __post_init__(self) -> None:
        num_atoms, num_systems = len(self.positions), len(self.cell)
        wanted = {
            "positions": (num_atoms, 3),
            "atomic_numbers": (num_atoms,),
            "system_index": (num_atoms,),
            "cell": (num_systems, 3, 3),
            "pbc": (num_systems, 3),
            "charge": (num_systems,),
        }
        if self.partial_charges is not None:
            wanted["partial_charges"] = (num_atoms,)
        require_fields(self, "batch", wanted)
        if self.system_index.device.type == "cpu":
            require_order(self.system_index, num_systems)

    @classmethod
    def from_systems(cls, systems: Sequence[System]) -> Batch:
        """Concatenates systems of any size, cell and pbc; they share one device and dtype."""
        if not systems:
            raise ValueError("a batch needs at least one system, got none")
        kinds = {(s.positions.device, s.positions.dtype) for s in systems}
        if len(kinds) > 1:
            raise ValueError(f"the systems of a batch must share one device and dtype, got {sorted(map(str, kinds))}")
        ((device, dtype),) = kinds
        counts = torch.tensor([s.num_atoms for s in systems], device=device)
        given = [s.partial_charges for s in systems if s.partial_charges is not None]
        if given and len(given) < len(systems):
            raise ValueError(
                f"partial_charges must be given for all {len(systems)} systems of a batch, got {len(given)}"
            )
        return cls(
            positions=torch.cat([s.positions for s in systems]),
            atomic_numbers=torch.cat([s.atomic_numbers for s in systems]),
            system_index=torch.repeat_interleave(torch.arange(len(systems), device=device), counts),
            cell=torch.stack([s.cell for s in systems]),
            pbc=torch.stack([s.pbc for s in systems]),
            charge=torch.tensor([s.charge for s in systems], dtype=dtype, device=device),
            partial_charges=torch.cat(given) if given else None,
        )

    @classmethod
    def of(cls, structure: System | Batch | Sequence[System]) -> Batch:
        """The batch itself, or a batch of one or several systems."""
        if isinstance(structure, Batch):
            if structure.system_index.is_cuda:  # the constructor can't read it, while a graph is captured
                require_order(structure.system_index, structure.num_systems)
            return structure
        return cls.from_systems([structure] if isinstance(structure, System) else structure)

    @property
    def num_atoms(self) -> int:
        return self.positions.shape[0]

    @property
    def num_systems(self) -> int:
        return self.cell.shape[0]

    def counts(self) -> Tensor:
        """Atoms of each system [S], int64."""
        ones = torch.ones_like(self.system_index)
        return ones.new_zeros(self.num_systems).index_add(0, self.system_index, ones)

    def systems(self) -> list[System]:
        """The systems of the batch, in order."""
        counts, given = self.counts().tolist(), self.partial_charges
        atoms = zip(self.positions.split(counts), self.atomic_numbers.split(counts), strict=True)
        charges: Sequence[Tensor | None] = [None] * self.num_systems if given is None else given.split(counts)
        return [
            System(positions, numbers, self.cell[i], self.pbc[i], float(self.charge[i]), charges[i])
            for i, (positions, numbers) in enumerate(atoms)
        ]

    def clone(self) -> Batch:
        """A copy with its own tensors."""
        return replace(self, **{name: value.clone() for name, value in vars(self).items() if value is not None})

    def require_alike(self, other: Batch) -> None:
        """Raises ValueError if only one of two batches has partial_charges."""
        if (self.partial_charges is None) != (other.partial_charges is None):
            kept, given = ("no" if b.partial_charges is None else "given" for b in (self, other))
            raise ValueError(f"a batch with {kept} partial_charges can't take one with {given} partial_charges")

    def copy_(self, other: Batch) -> None:
        """Copies the values of a batch of the same sizes.

        Raises:
            ValueError: If only one has partial_charges.
        """
        self.require_alike(other)
        for name, value in vars(self).items():
            if value is not None:
                value.copy_(getattr(other, name))

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """The same batch on another device or in another floating dtype."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return replace(self, **{name: moved(value, device, dtype) for name, value in given.items()})
