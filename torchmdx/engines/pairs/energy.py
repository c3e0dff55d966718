"""TensorNet and TensorNet2 on pairs of atoms, for training and for steps, differentiable to any order.

Weights and results are those of the potential, which remains the reference. Functions of the distance are computed
once per pair instead of per edge, and messages are the multilinear forms of `messages` and `products`, whose
derivatives of any order are such forms too. Sums have a fixed order, so that a repeated step on a GPU gives the same
bits. Nothing is read on the host, and all shapes are determined by the capacity of the list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from torchmdx.engines.pairs.filters import through
from torchmdx.engines.pairs.network import features
from torchmdx.engines.pairs.pair_list import PairList, sum_rows, take_rows
from torchmdx.engines.pairs.prior_geometry import pair_geometry
from torchmdx.evaluation.derivatives import EnergyParts, Result, differentiate_energy, with_last_inputs
from torchmdx.models.energy_head import GatedHead, ScalarHead
from torchmdx.models.heads import HeadTable
from torchmdx.models.potential import Potential
from torchmdx.models.priors.base import Geometry, Lattice
from torchmdx.neighbors.edges import Edges
from torchmdx.runtime.device_guard import device_of_potential, runs_on
from torchmdx.structures.cell import strained_cell
from torchmdx.structures.system import Batch


def pairwise_energy(
    potential: Potential,
    batch: Batch,
    edges: Edges,
    reverse: Tensor,
    positions: Tensor,
    strain: Tensor | None = None,
    near: PairList | None = None,
    seen: Callable[[Tensor], None] | None = None,
) -> EnergyParts:
    """Energies [S] and of atoms [N], eV, and charges [N] of atoms that predict them, e; all float64.

    Differentiable in positions [N,3], strain [S,3,3] and weights.

    Args:
        edges, reverse: Of an EdgeSearch with reverse=True.
        strain: Symmetric; see `torchmdx.evaluation.derivatives.strained`.
        near: Pairs within the cutoff of the network, where priors have longer cutoffs; None: the network gets all
            pairs.
        seen: Called with the features [N,C] of the network.
    """
    dtype = potential.dtype  # positions and cell may have a wider one: differences come before rounding
    pairs = PairList.of(edges, reverse)
    vectors = pairs.vectors(positions, batch.cell, batch.system_index, strain).to(dtype)
    if near is None:
        found, channels = features(potential.network, pairs, vectors, batch)
    else:
        inner = near.vectors(positions, batch.cell, batch.system_index, strain).to(dtype)
        found, channels = features(potential.network, near, inner, batch)
    if seen is not None:
        seen(found)
    outputs = _outputs(potential.head, found)

    def geometry() -> Geometry:
        deformed = positions if strain is None else strained_positions(positions, strain, batch)
        rounded = replace(batch, positions=deformed.detach().to(dtype), cell=batch.cell.to(dtype))
        return pair_geometry(rounded, pairs, vectors, Lattice(deformed, strained_cell(batch.cell, strain)), channels)

    energies = potential.assemble(outputs, batch, geometry)
    charges = None if channels is None else _conserved(potential.combined_charges(channels), batch)
    return sum_rows(energies, batch.system_index, batch.num_systems), energies, charges


def _outputs(head: ScalarHead | GatedHead | HeadTable, features: Tensor) -> Tensor:
    """Outputs [N] of a head, or of the heads of the atoms."""
    if isinstance(head, HeadTable):
        return head.chosen([_outputs(cast(ScalarHead, part), features) for part in head.parts])
    if isinstance(head, GatedHead):
        found = through(head.layers, features) * torch.sigmoid(through(head.gates, features))
    else:
        found = through(head.network, features)
    return found.squeeze(-1)


def _conserved(charges: Tensor, batch: Batch) -> Tensor:
    """As `torchmdx.models.charge_equilibration.conserved`, with sums in a fixed order."""
    charges = charges.double()
    sums = sum_rows(charges, batch.system_index, batch.num_systems)
    missing = (batch.charge - sums) / batch.counts().clamp(min=1)
    return charges + take_rows(missing, batch.system_index, batch.num_systems)


def _dipoles(charges: Tensor, positions: Tensor, batch: Batch) -> Tensor:
    """As `torchmdx.evaluation.derivatives.dipole_moments`, with sums in a fixed order."""
    positions, numbers = positions.double(), batch.atomic_numbers.double()
    columns = torch.cat([numbers[:, None] * positions, numbers[:, None]], dim=-1)
    sums = sum_rows(columns, batch.system_index, batch.num_systems)
    centre = sums[:, :3] / sums[:, 3:4].clamp(min=1)
    relative = positions - take_rows(centre, batch.system_index, batch.num_systems)
    moments = sum_rows(charges[:, None] * relative, batch.system_index, batch.num_systems)
    return torch.where(batch.pbc.any(-1)[:, None], torch.nan, moments)


def strained_positions(positions: Tensor, strain: Tensor, batch: Batch) -> Tensor:
    """As `torchmdx.structures.cell.strained_positions`, with a gradient that is summed in a fixed order."""
    of_atoms = take_rows(strain.flatten(1), batch.system_index, batch.num_systems)
    return positions + torch.einsum("ni,nij->nj", positions, of_atoms.unflatten(1, (3, 3)))


@runs_on(device_of_potential)
def differentiate_pairwise(
    potential: Potential,
    batch: Batch,
    edges: Edges,
    reverse: Tensor,
    *,
    forces: bool = True,
    stress: bool = False,
    create_graph: bool = True,
    near: PairList | None = None,
) -> Result:
    """As `torchmdx.evaluation.derivatives.differentiate`; reverse and near as in `pairwise_energy`."""
    seen: list[Tensor] = []

    def energy(positions: Tensor, strain: Tensor | None) -> EnergyParts:
        symmetric = None if strain is None else (strain + strain.transpose(1, 2)) / 2
        return pairwise_energy(potential, batch, edges, reverse, positions, symmetric, near, seen.append)

    with torch.set_grad_enabled(forces or stress or create_graph):
        positions = batch.positions.detach().requires_grad_(forces or create_graph)
        found = differentiate_energy(
            energy, batch, positions, forces=forces, stress=stress, create_graph=create_graph, dipoles_of=_dipoles
        )
    return with_last_inputs(found, potential, batch, seen[-1])
