"""The sum of an Ewald sum over the reciprocal lattice with its derivatives, as products of matrices.

For steps that need no further derivatives. Phases are computed in the dtype of the positions, normally float64, and
reduced to one turn before they are rounded to that of the charges, in which the products are. Nothing is read on the
host once the list of vectors is there.

::

    | variable | symbol | shape |
    |---|---|---|
    | cosines, sines | cos and sin of k · r | [N,K] |
    | real, imaginary | A(k) times the two parts of S(k) | [K,M] |
    | potentials | derivatives of the energy in charges of unit weight | [N,M] |
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchmdx.models.priors.coulomb import Coulomb
from torchmdx.models.priors.ewald import KVectors
from torchmdx.models.priors.mesh import spline_slopes, splines
from torchmdx.models.priors.reciprocal import (
    MOST_PHASES,
    OnMesh,
    Reciprocal,
    gather,
    products,
    reciprocal_energies,
    reciprocals,
    rows_of,
    spread,
)
from torchmdx.runtime.isolation import isolated
from torchmdx.structures.cell import strained_cell, strained_positions
from torchmdx.structures.system import Batch

CACHED = 500_000  # values at points of the grid that stay in the cache of a CPU


@dataclass(frozen=True, eq=False)
class ReciprocalResult:
    """Energies [N], float64; gradients in positions [N,3], float64, charges [N,M], and strain [S,3,3], float64."""

    energies: Tensor
    slope: Tensor
    pull: Tensor
    virial: Tensor


@isolated
def differentiate_reciprocal(
    prior: Coulomb, batch: Batch, charges: Tensor, overflow: Tensor, *, forces: bool = True, stress: bool = False
) -> ReciprocalResult:
    """Of charges [N,M]. overflow: set at a replay that the list of vectors does not fit.

    Without `forces` all gradients are zero, without `stress` the virial is.
    """
    charges = charges.detach()
    vectors = prior.vectors_for(batch, charges, overflow)
    if vectors.has_slabs:
        return _by_autograd(prior, vectors, batch, charges, forces=forces, stress=stress)
    weights, strength = prior.weights.to(charges.dtype), prior.config.strength
    energies, slope = (charges.new_zeros(len(charges), *more, dtype=torch.float64) for more in ((), (3,)))
    potentials, virial = torch.zeros_like(charges), slope.new_zeros(batch.num_systems, 3, 3)
    systems = zip(reciprocals(vectors, batch.cell.detach()), rows_of(vectors, batch), strict=True)
    for s, (system, rows) in zip(vectors.periodic, systems, strict=True):
        found = _of_system(system, batch.positions.detach(), charges, rows, weights, forces=forces)
        energies, slope, potentials = (a + b for a, b in zip((energies, slope, potentials), found, strict=False))
        virial[s] = found[3]
    return ReciprocalResult(strength * energies, strength * slope, strength * potentials * weights, strength * virial)


Part = tuple[Tensor, Tensor, Tensor, Tensor]


def _of_system(
    system: Reciprocal, positions: Tensor, charges: Tensor, rows: slice | Tensor, weights: Tensor, *, forces: bool
) -> Part:
    """(energies [N], slope [N,3], potentials [N,M], virial [3,3]) of one system of a batch, for unit strength."""
    if isinstance(rows, slice):
        x, q = positions[rows], charges[rows]
        first, last, _ = rows.indices(len(positions))
    else:
        x, q, first, last = positions, torch.where(rows, charges, 0.0), 0, len(positions)
    _, k, square = system.amplitudes()
    weighted, wide = q * weights, torch.float64
    if isinstance(system, OnMesh):
        potentials, slope, power = _on_mesh(system, x, q, weights, forces)
    else:
        potentials, slope, power = _by_products(system, x, q, weights, forces)
    total = q.sum(0)
    potentials = potentials + system.background().to(q.dtype) * total - system.splitting.own_potential * q
    energies = 0.5 * (potentials * weighted).sum(-1).to(wide)
    background = 0.5 * system.background() * (total**2 @ weights)
    power = 0.5 * power.to(k.dtype)
    stretch = k * (2 * power * (1 / square + 1 / (4 * system.splitting.alpha**2)))[:, None]
    virial = stretch.T @ k - (power.sum() + background) * torch.eye(3, dtype=k.dtype, device=k.device)
    if not forces:
        potentials = torch.zeros_like(potentials)
    elif not isinstance(rows, slice):
        potentials = torch.where(rows, potentials, 0.0)
    after = len(positions) - last
    slope, potentials = (torch.nn.functional.pad(value, (0, 0, first, after)) for value in (slope, potentials))
    return torch.nn.functional.pad(energies, (first, after)), slope, potentials, virial.to(wide)


def _by_products(
    system: Reciprocal, x: Tensor, q: Tensor, weights: Tensor, forces: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """(potentials [N,M], slope [N,3], amplitudes times squares of structure factors [K]), by products of matrices."""
    amplitudes, k, _ = system.amplitudes()
    amplitudes, weighted = amplitudes.to(q.dtype), q * weights
    potentials, slope, powers = torch.zeros_like(q), x.new_zeros(len(x), 3, dtype=torch.float64), []
    width = max(1, MOST_PHASES // max(len(x), 1))
    for part in (slice(at, at + width) for at in range(0, len(k), width)):
        phases = system.phases(x, part).to(q.dtype)
        cosines, sines = torch.cos(phases), torch.sin(phases)
        factors = (cosines.T @ q, sines.T @ q)
        real, imaginary = (amplitudes[part, None] * factor for factor in factors)
        potentials = potentials + cosines @ real + sines @ imaginary
        powers.append((real * factors[0] + imaginary * factors[1]) @ weights)
        if forces:
            along = cosines * (weighted @ imaginary.T) - sines * (weighted @ real.T)
            slope += (along @ k[part].to(q.dtype)).double()
    return potentials, slope, torch.cat(powers) if powers else q.new_zeros(0)


def _on_mesh(system: OnMesh, x: Tensor, q: Tensor, weights: Tensor, forces: bool) -> tuple[Tensor, Tensor, Tensor]:
    """As `_by_products`, on a mesh."""
    most = CACHED if q.device.type == "cpu" else MOST_PHASES
    parts, order, seen = system.parts(q, most), system.order, []
    grid = q.new_zeros(math.prod(system.shape), q.shape[1])
    for part in parts:
        points, fractions = system.support(x[part])
        factors = splines(order, fractions)
        seen.append((points, fractions, factors, products(factors).to(q.dtype)))
        spread(grid, points, seen[-1][3][..., None] * q[part, None], in_place=True)
    grid, waves = system.convolved(grid)
    power = system.amplitudes()[0].to(q.dtype) * (weights @ (waves.real**2 + waves.imag**2))
    potentials, slope = torch.empty_like(q), x.new_zeros(len(x), 3, dtype=torch.float64)
    to_steps = torch.stack([points * row for points, row in zip(system.shape, system.dual, strict=True)])
    for part, (points, fractions, factors, values) in zip(parts, seen, strict=True):
        near = gather(grid, points)
        potentials[part] = (values[:, None] @ near)[:, 0]
        if forces:
            along, slopes = near @ (q[part] * weights)[:, :, None], spline_slopes(order, fractions)
            each = [products(_replaced(factors, slopes, axis)).to(q.dtype) for axis in range(3)]
            steps = torch.stack(each, 1) @ along
            slope[part] = (steps[..., 0].to(x.dtype) @ to_steps).double()
    return potentials, slope, power


def _replaced(factors: Tensor, slopes: Tensor, axis: int) -> Tensor:
    here = torch.arange(3, device=factors.device)[:, None] == axis
    return torch.where(here, slopes, factors)


def _by_autograd(
    prior: Coulomb, vectors: KVectors, batch: Batch, charges: Tensor, *, forces: bool, stress: bool
) -> ReciprocalResult:
    """Of batches with slabs, whose cells do not follow a strain as a whole."""
    with torch.set_grad_enabled(forces):
        positions, charges = (x.detach().requires_grad_(forces) for x in (batch.positions, charges))
        strain = positions.new_zeros(batch.num_systems, 3, 3).requires_grad_(stress)
        places, cell = positions, batch.cell
        if stress:
            places = strained_positions(positions, strain, batch.system_index)
            cell = strained_cell(cell, strain)
        energies = reciprocal_energies(vectors, batch, places, cell, charges, prior.weights)
        energies = prior.config.strength * energies
        slope, pull, virial = (torch.zeros_like(x) for x in (positions, charges, strain))
        if forces:
            wanted = [positions, charges, *([strain] if stress else [])]
            slope, pull, *virials = torch.autograd.grad(energies.sum(), wanted, materialize_grads=True)
            virial = virials[0] if stress else virial
    return ReciprocalResult(energies.detach().double(), slope.double(), pull, virial.double())
