"""The part of Ewald sums over the reciprocal lattice, with self energy, background and the correction of slabs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from torchmdx.models.priors.base import shapes_are_fixed
from torchmdx.models.priors.ewald import TWO_PI, KVectors, Splitting, dual
from torchmdx.structures.cell import volume
from torchmdx.structures.system import Batch

MOST_PHASES = 16_000_000  # at a time, atoms times vectors


@dataclass(frozen=True, eq=False)
class Reciprocal:
    """One system. indices [K,3]; dual [3,3]: rows of its reciprocal lattice without 2π; volume [], normal [3].

    Attributes:
        normal: Across a slab, zero for other systems.
    """

    indices: Tensor
    splitting: Splitting
    dual: Tensor
    volume: Tensor
    normal: Tensor

    def phases(self, positions: Tensor, part: slice = slice(None)) -> Tensor:
        """k · r [N,K], less whole turns, of atoms at positions [N,3]. part: of the vectors."""
        turns = (positions @ self.dual.T) @ self.indices[part].T.to(positions.dtype)
        return TWO_PI * (turns - turns.detach().round())

    def amplitudes(self) -> tuple[Tensor, Tensor, Tensor]:
        """(2 A(k) [K], for k and -k, zero in unused slots; k [K,3]; k² [K], 1 in unused slots)."""
        k = TWO_PI * (self.indices.to(self.dual.dtype) @ self.dual)
        square = (k**2).sum(-1)
        used = square > 0
        square = torch.where(used, square, 1.0)
        values = 8 * math.pi / self.volume * torch.exp(-square / (4 * self.splitting.alpha**2)) / square
        return torch.where(used, values, 0.0), k, square

    def background(self) -> Tensor:
        """What one unit of charge adds to the potential at every atom, for the uniform background."""
        return -self.splitting.background / self.volume

    def energies(self, positions: Tensor, charges: Tensor, weights: Tensor) -> Tensor:
        """Energies [N] of charges [N,M] with weights [M], for unit strength."""
        amplitudes = self.amplitudes()[0].to(charges.dtype)
        potentials = -self.splitting.own_potential * charges
        width = max(1, MOST_PHASES // max(len(positions), 1))
        parts = [slice(first, first + width) for first in range(0, len(amplitudes), width)]
        for part in parts:
            # Several parts are evaluated a second time for their derivatives, and keep nothing until then.
            given = (part, positions, charges, amplitudes)
            if len(parts) > 1:
                found = checkpoint(self._waves, *given, use_reentrant=False, preserve_rng_state=False)
            else:
                found = self._waves(*given)
            potentials = potentials + found
        potentials = potentials + self.background().to(charges.dtype) * charges.sum(0)
        return 0.5 * ((potentials + self.across(positions, charges)) * charges) @ weights.to(charges.dtype)

    def _waves(self, part: slice, positions: Tensor, charges: Tensor, amplitudes: Tensor) -> Tensor:
        """Potentials [N,M] of a part of the vectors."""
        phases = self.phases(positions, part).to(charges.dtype)
        cosines, sines = torch.cos(phases), torch.sin(phases)
        real, imaginary = (amplitudes[part, None] * (wave.T @ charges) for wave in (cosines, sines))
        return cosines @ real + sines @ imaginary

    def across(self, positions: Tensor, charges: Tensor) -> Tensor:
        """Potentials [N,M] of the correction of a slab, -2π / V Σ_j q_j (z_i - z_j)²; zero for other systems."""
        z = ((positions - positions.detach().mean(0)) @ self.normal).to(charges.dtype)[:, None]
        total, dipole, second = (charges.sum(0), (z * charges).sum(0), (z**2 * charges).sum(0))
        return -(2 * math.pi / self.volume).to(charges.dtype) * (z**2 * total - 2 * z * dipole + second)


def reciprocals(vectors: KVectors, cell: Tensor) -> list[Reciprocal]:
    """Every periodic system of a batch with cells [S,3,3], which may require gradients."""
    lattice = vectors.lattice(cell)
    duals, volumes, normals = dual(lattice), volume(lattice), vectors.normals(cell)
    return [
        Reciprocal(vectors.indices[s], vectors.splitting, duals[s], volumes[s], normals[s]) for s in vectors.periodic
    ]


def rows_of(vectors: KVectors, batch: Batch) -> list[slice | Tensor]:
    """The atoms of each periodic system: slices, or in a capture, where the host may read nothing, masks [N,1]."""
    if batch.num_systems == 1:
        return [slice(None)] * len(vectors.periodic)
    if shapes_are_fixed(batch.positions):
        return [(batch.system_index == s)[:, None] for s in vectors.periodic]
    ends = [0, *batch.counts().cumsum(0).tolist()]
    return [slice(ends[s], ends[s + 1]) for s in vectors.periodic]


def reciprocal_energies(
    vectors: KVectors, batch: Batch, positions: Tensor, cell: Tensor, charges: Tensor, weights: Tensor
) -> Tensor:
    """Energies [N] of charges [N,M] with weights [M], for unit strength, from positions [N,3] and cells [S,3,3] Å.

    They sum to the energy of their system, and are differentiable. Phases are computed in the dtype of the positions,
    sums in that of the charges, also where products are otherwise in bfloat16. Of systems without periodic directions
    they are zero.
    """
    energies = charges.new_zeros(batch.num_atoms)
    with torch.autocast(charges.device.type, enabled=False):
        for system, rows in zip(reciprocals(vectors, cell), rows_of(vectors, batch), strict=True):
            if isinstance(rows, slice):
                found = system.energies(positions[rows], charges[rows], weights)
                first, last, _ = rows.indices(batch.num_atoms)
                energies = energies + torch.nn.functional.pad(found, (first, batch.num_atoms - last))
            else:
                energies = energies + system.energies(positions, torch.where(rows, charges, 0.0), weights)
    return energies
