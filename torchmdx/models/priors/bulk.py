"""Ewald sums of many crystals at once in buffers of fixed shapes, as captured training steps need them.

`reciprocal` sums one system after another, over vectors that are chosen for every batch. Here the atoms of all systems
are rows of one tensor, [S,W], and vectors are chosen on the host when a batch is loaded. The sums themselves read
nothing, and keep their shapes while systems, cells and numbers of atoms change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmdx.models.priors.ewald import dual, half_of
from torchmdx.models.priors.reciprocal import Reciprocal
from torchmdx.models.priors.splitting import Splitting, takes_mesh
from torchmdx.structures.cell import volume

# Slots for vectors and rows for atoms come in multiples of these, with HEAD_ROOM as a fraction of those needed.
SLOTS, ROWS, HEAD_ROOM = 64, 8, 0.06
MOST_KEPT = 4096  # cells whose vectors are remembered


@dataclass(frozen=True, eq=False)
class Crystals:
    """What the host knows of a batch: cells [F,3,3] Å, periodic directions [F,3] and counts [F] of atoms, in order."""

    cells: NDArray[np.float64]
    pbc: NDArray[np.bool_]
    counts: NDArray[np.int64]

    @classmethod
    def none(cls) -> Self:
        return cls(np.zeros((0, 3, 3)), np.zeros((0, 3), np.bool_), np.zeros(0, np.int64))

    @property
    def periodic(self) -> NDArray[np.bool_]:
        return np.asarray(self.pbc.any(-1))

    def are_bulk(self) -> bool:
        """Whether all systems with periodic directions have three, with vectors that span them."""
        return bool(self.pbc[self.periodic].all() and (np.linalg.det(self.cells[self.periodic]) != 0).all())


@dataclass(eq=False)
class BulkSums:
    """Vectors and atoms of the periodic systems of a batch of S systems and N atoms, for one prior.

    Attributes:
        indices: [S,K,3] float64, vectors in units of the reciprocal lattice; unused slots are zero.
        atoms: [S,W], the atoms of each system; filled [S,W]: which of them are there.
        places: [N], where each atom is in the flattened rows; S W for atoms of systems without periodic directions.
    """

    splitting: Splitting
    indices: Tensor
    atoms: Tensor
    filled: Tensor
    places: Tensor
    _kept: dict[bytes, Tensor] = field(default_factory=dict)

    @classmethod
    def empty(cls, splitting: Splitting, systems: int, atoms: int, device: torch.device, room: tuple[int, int]) -> Self:
        """For systems without periodic directions. room: slots for vectors, and rows for the atoms of a system."""
        slots, rows = room
        return cls(
            splitting,
            torch.zeros(systems, slots, 3, dtype=torch.float64, device=device),
            torch.zeros(systems, rows, dtype=torch.int64, device=device),
            torch.zeros(systems, rows, dtype=torch.bool, device=device),
            torch.full((atoms,), systems * rows, dtype=torch.int64, device=device),
        )

    @property
    def room(self) -> tuple[int, int]:
        return self.indices.shape[1], self.atoms.shape[1]

    def load(self, crystals: Crystals) -> bool:
        """Takes the systems of a batch; False if the buffers had to be replaced by larger ones. Reads no device."""
        lists = [
            self._vectors(cell) if here else None for cell, here in zip(crystals.cells, crystals.periodic, strict=True)
        ]
        most = max((len(each) for each in lists if each is not None), default=0)
        widest = int(max(crystals.counts[crystals.periodic], default=0))
        fits = most <= self.room[0] and widest <= self.room[1]
        systems, total, device = len(self.indices), len(self.places), self.indices.device
        if not fits:
            room = max(self.room[0], _roomy(most, SLOTS)), max(self.room[1], _roomy(widest, ROWS))
            larger = type(self).empty(self.splitting, systems, total, device, room)
            self.indices, self.atoms, self.filled, self.places = (
                larger.indices, larger.atoms, larger.filled, larger.places,
            )  # fmt: skip
        slots, rows = self.room
        indices = np.zeros((systems, slots, 3))
        atoms, filled = np.zeros((systems, rows), np.int64), np.zeros((systems, rows), np.bool_)
        places = np.full(total, systems * rows)
        first = 0
        for s, (count, each) in enumerate(zip(crystals.counts.tolist(), lists, strict=True)):
            if each is not None:
                indices[s, : len(each)] = each.numpy()
                atoms[s, :count], filled[s, :count] = np.arange(first, first + count), True
                places[first : first + count] = s * rows + np.arange(count)
            first += count
        for buffer, values in zip(
            (self.indices, self.atoms, self.filled, self.places), (indices, atoms, filled, places), strict=True
        ):
            buffer.copy_(torch.from_numpy(values))
        return fits

    def _vectors(self, cell: NDArray[np.float64]) -> Tensor:
        key = cell.tobytes()
        if key not in self._kept:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[key] = half_of(torch.from_numpy(cell.astype(np.float64)), self.splitting.longest)
        return self._kept[key]

    def energies(self, positions: Tensor, cell: Tensor, charges: Tensor, weights: Tensor) -> Tensor:
        """Energies [N] of charges [N,M] with weights [M], for unit strength, as `reciprocal_energies` computes them."""
        with torch.autocast(charges.device.type, enabled=False):
            some = self.filled.any(-1)
            lattice = torch.where(some[:, None, None], cell, torch.eye(3, dtype=cell.dtype, device=cell.device))
            normal = torch.zeros_like(lattice[:, 0])
            waves = _Bulk(self.indices, self.splitting, dual(lattice), volume(lattice), normal)
            rows = torch.where(self.filled[..., None], _rows(charges, self.atoms), 0.0)
            found = waves.energies(_rows(positions, self.atoms), rows, weights)
            return torch.cat([found.flatten(), found.new_zeros(1)]).index_select(0, self.places)


class _Bulk(Reciprocal):
    """Systems none of which is a slab."""

    def across(self, positions: Tensor, charges: Tensor) -> Tensor:
        return torch.zeros_like(charges)


def takes_vectors(crystals: Crystals, splitting: Splitting, method: str, num_atoms: int) -> bool:
    """Whether a batch with this number of atoms, padding included, is summed over vectors, and not on a mesh."""
    number = int(crystals.periodic.sum())
    if method == "pme":
        return not number
    if method != "auto" or not number:
        return True
    mean = float(np.abs(np.linalg.det(crystals.cells[crystals.periodic])).mean())
    return not takes_mesh(splitting, num_atoms / number, mean)


def _rows(values: Tensor, atoms: Tensor) -> Tensor:
    """Values [N,..] of atoms [S,W]."""
    return values.index_select(0, atoms.flatten()).unflatten(0, atoms.shape)


def _roomy(needed: int, multiple: int) -> int:
    return -(-int(needed * (1 + HEAD_ROOM)) // multiple) * multiple
