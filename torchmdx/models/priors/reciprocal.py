"""The part of Ewald sums over the reciprocal lattice, with self energy, background and the correction of slabs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from torchmdx.models.priors.base import shapes_are_fixed
from torchmdx.models.priors.ewald import TWO_PI, KVectors, dual
from torchmdx.models.priors.mesh import splines, wave_amplitudes
from torchmdx.models.priors.splitting import Splitting
from torchmdx.structures.cell import volume
from torchmdx.structures.system import Batch

MOST_PHASES = 16_000_000  # at a time, atoms times vectors


@dataclass(frozen=True, eq=False)
class Reciprocal:
    """One system, or several with leading axes. indices [K,3]; dual [3,3]: rows of its reciprocal lattice without 2π.

    Attributes:
        volume: [], Å³.
        normal: Across a slab [3], zero for other systems.
    """

    indices: Tensor
    splitting: Splitting
    dual: Tensor
    volume: Tensor
    normal: Tensor

    def phases(self, positions: Tensor, part: slice = slice(None)) -> Tensor:
        """k · r [N,K], less whole turns, of atoms at positions [N,3]. part: of the vectors."""
        turns = (positions @ self.dual.mT) @ self.indices[..., part, :].mT.to(positions.dtype)
        return TWO_PI * (turns - turns.detach().round())

    def amplitudes(self) -> tuple[Tensor, Tensor, Tensor]:
        """(2 A(k) [K], for k and -k, zero in unused slots; k [K,3]; k² [K], 1 in unused slots)."""
        k = TWO_PI * (self.indices.to(self.dual.dtype) @ self.dual)
        square = (k**2).sum(-1)
        used = square > 0
        square = torch.where(used, square, 1.0)
        scale = 8 * math.pi / self.volume[..., None]
        values = scale * torch.exp(-square / (4 * self.splitting.alpha**2)) / square
        return torch.where(used, values, 0.0), k, square

    def background(self) -> Tensor:
        """What one unit of charge adds to the potential at every atom, for the uniform background."""
        return -self.splitting.background / self.volume

    def energies(self, positions: Tensor, charges: Tensor, weights: Tensor) -> Tensor:
        """Energies [N] of charges [N,M] with weights [M], for unit strength."""
        potentials = self.potentials(positions, charges) - self.splitting.own_potential * charges
        background = self.background().to(charges.dtype)[..., None, None]
        potentials = potentials + background * charges.sum(-2, keepdim=True)
        return 0.5 * ((potentials + self.across(positions, charges)) * charges) @ weights.to(charges.dtype)

    def potentials(self, positions: Tensor, charges: Tensor) -> Tensor:
        """Potentials [N,M] of the waves."""
        amplitudes = self.amplitudes()[0].to(charges.dtype)
        potentials = torch.zeros_like(charges)
        width = max(1, MOST_PHASES // max(positions[..., 0].numel(), 1))
        parts = [slice(first, first + width) for first in range(0, amplitudes.shape[-1], width)]
        for part in parts:
            # Several parts are evaluated a second time for their derivatives, and keep nothing until then.
            given = (part, positions, charges, amplitudes)
            if len(parts) > 1:
                found = checkpoint(self._waves, *given, use_reentrant=False, preserve_rng_state=False)
            else:
                found = self._waves(*given)
            potentials = potentials + found
        return potentials

    def _waves(self, part: slice, positions: Tensor, charges: Tensor, amplitudes: Tensor) -> Tensor:
        """Potentials [N,M] of a part of the vectors."""
        phases = self.phases(positions, part).to(charges.dtype)
        cosines, sines = torch.cos(phases), torch.sin(phases)
        real, imaginary = (amplitudes[..., part, None] * (wave.mT @ charges) for wave in (cosines, sines))
        return cosines @ real + sines @ imaginary

    def across(self, positions: Tensor, charges: Tensor) -> Tensor:
        """Potentials [N,M] of the correction of a slab, -2π / V Σ_j q_j (z_i - z_j)²; zero for other systems."""
        z = ((positions - positions.detach().mean(0)) @ self.normal).to(charges.dtype)[:, None]
        total, dipole, second = (charges.sum(0), (z * charges).sum(0), (z**2 * charges).sum(0))
        return -(2 * math.pi / self.volume).to(charges.dtype) * (z**2 * total - 2 * z * dipole + second)


@dataclass(frozen=True, eq=False)
class OnMesh(Reciprocal):
    """One system, whose charges are spread on a mesh of this shape with splines of an order."""

    order: int
    shape: tuple[int, int, int]

    def amplitudes(self) -> tuple[Tensor, Tensor, Tensor]:
        values, k, square = super().amplitudes()
        return values * self._spread_of_waves() / (2 / self.times), k, square

    @property
    def times(self) -> Tensor:
        """How often a vector of half of the transform stands for one of the whole, [K]: once or twice."""
        last = self.indices[:, 2]
        return torch.where(last == 0, 1.0, 2.0)

    def _spread_of_waves(self) -> Tensor:
        device, half = self.indices.device, self.shape[2] // 2 + 1
        a, b, c = (wave_amplitudes(self.order, points, device) for points in self.shape)
        return (a[:, None, None] * b[:, None] * c[:half]).flatten()

    def support(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(points [N,p³] that charges at positions [N,3] are spread to, fractions [N,3] of a step of the grid)."""
        turns = positions @ self.dual.T
        turns = turns - turns.detach().floor()
        steps = torch.stack([turns[:, axis] * points for axis, points in enumerate(self.shape)], -1)
        first = steps.detach().floor()
        # M_p(w + d) is the weight of the point d steps below.
        near = first.long()[..., None] - torch.arange(self.order, device=positions.device)
        x, y, z = (near[:, axis] % points for axis, points in enumerate(self.shape))
        points = (x[:, :, None, None] * self.shape[1] + y[:, None, :, None]) * self.shape[2] + z[:, None, None, :]
        return points.flatten(1), steps - first

    def parts(self, charges: Tensor, most: int) -> list[slice]:
        """Of the atoms with charges [N,M], with at most this number of values at their points."""
        width = max(1, most // (self.order**3 * charges.shape[1]))
        return [slice(first, first + width) for first in range(0, len(charges), width)]

    def convolved(self, spread: Tensor) -> tuple[Tensor, Tensor]:
        """(potentials [G,M] on the grid of spread charges [G,M], their transform [M,K])."""
        waves = torch.fft.rfftn(spread.T.contiguous().unflatten(1, self.shape), dim=(1, 2, 3))
        amplitudes = (self.amplitudes()[0] / self.times).to(spread.dtype)
        product = waves * amplitudes.reshape(waves.shape[1:])
        # Not divided by the number of points.
        grid = torch.fft.irfftn(product, s=self.shape, dim=(1, 2, 3), norm="forward")
        return grid.flatten(1).T.contiguous(), waves.flatten(1)

    def potentials(self, positions: Tensor, charges: Tensor) -> Tensor:
        parts = self.parts(charges, MOST_PHASES)

        def run(step: Callable[..., Tensor], *given: Tensor) -> Tensor:
            if len(parts) == 1:
                return step(*given)
            return checkpoint(step, *given, use_reentrant=False, preserve_rng_state=False)

        grid = charges.new_zeros(math.prod(self.shape), charges.shape[1])
        for part in parts:
            grid = run(self._spread, grid, positions[part], charges[part])
        grid, _ = self.convolved(grid)
        return torch.cat([run(self._gathered, grid, positions[part]) for part in parts])

    def _spread(self, grid: Tensor, positions: Tensor, charges: Tensor) -> Tensor:
        points, fractions = self.support(positions)
        weights = products(splines(self.order, fractions)).to(charges.dtype)
        return spread(grid, points, weights[..., None] * charges[:, None])

    def _gathered(self, grid: Tensor, positions: Tensor) -> Tensor:
        points, fractions = self.support(positions)
        weights = products(splines(self.order, fractions)).to(grid.dtype)
        return (weights[:, None] @ gather(grid, points))[:, 0]


def spread(grid: Tensor, points: Tensor, values: Tensor, *, in_place: bool = False) -> Tensor:
    """The grid [G,M] with values [N,p³,M] added at points [N,p³], in a fixed order."""
    places, values = points.flatten(), values.flatten(0, 1)
    if values.is_cuda:  # index_add would add in any order
        return (grid.index_put_ if in_place else grid.index_put)((places,), values, accumulate=True)
    return (grid.index_add_ if in_place else grid.index_add)(0, places, values)


def gather(grid: Tensor, points: Tensor) -> Tensor:
    """Values [N,p³,M] of a grid [G,M] at points [N,p³], whose derivative is summed in a fixed order."""
    if grid.is_cuda:
        return grid[points]
    return grid.index_select(0, points.flatten()).unflatten(0, points.shape)


def products(factors: Tensor) -> Tensor:
    """Products [N,p³] of factors [N,3,p] along three axes."""
    x, y, z = factors.unbind(1)
    return (x[:, :, None, None] * y[:, None, :, None] * z[:, None, None, :]).flatten(1)


def reciprocals(vectors: KVectors, cell: Tensor) -> list[Reciprocal]:
    """Every periodic system of a batch with cells [S,3,3], which may require gradients."""
    lattice = vectors.lattice(cell)
    duals, volumes, normals = dual(lattice), volume(lattice), vectors.normals(cell)
    given = [(vectors.indices[s], vectors.splitting, duals[s], volumes[s], normals[s]) for s in vectors.periodic]
    if vectors.mesh is None:
        return [Reciprocal(*each) for each in given]
    return [OnMesh(*each, vectors.mesh.order, vectors.shape) for each in given]


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
