"""QET on pairs of atoms: as `torchmdx.models.qet`, with sums in a fixed order, differentiable to any order."""

from __future__ import annotations

import torch
from torch import Tensor

from torchmdx.engines.pairs.filters import through
from torchmdx.engines.pairs.pair_list import PairList, at_ends, onto_ends, sum_rows, take_rows
from torchmdx.engines.pairs.row_norm import normalised_rows
from torchmdx.models.qet import QET, charges_of, chemical_potential, unit_potential
from torchmdx.structures.system import Batch


def joined_features(network: QET, x: Tensor, pairs: PairList, vectors: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Features [N,C+2] and charges [N,1] from the features [N,C] of the TensorNet and vectors [P,3] of the pairs."""
    parts = network.equilibration
    if parts.by_element:
        hardness = parts.element_hardness(batch.atomic_numbers)
    else:
        hardness = through(parts.hardness, x)
    softness = 1 / hardness
    share = torch.cat([through(parts.electronegativity, x) * softness, softness], dim=-1)
    sums = sum_rows(share, batch.system_index, batch.num_systems)
    level = chemical_potential(sums, batch.charge).to(x.dtype)
    charges = charges_of(share, take_rows(level, batch.system_index, batch.num_systems))[:, None]
    potential = _potential(network, charges, pairs, vectors, batch)
    return normalised_rows(network.norm, torch.cat([x, charges, potential], dim=-1)), charges


def _potential(network: QET, charges: Tensor, pairs: PairList, vectors: Tensor, batch: Batch) -> Tensor:
    """V [N,1]."""
    squares = network.equilibration.width(batch.atomic_numbers)[:, None] ** 2
    at_both = torch.where(pairs.filled()[:, None], at_ends(squares, pairs, 1.0, 1.0), 1.0)
    weight = unit_potential(torch.linalg.vector_norm(vectors, dim=-1, keepdim=True), at_both, network.config)
    if network.config.messages == "target":
        return charges * onto_ends(weight, pairs, 1.0, 1.0)
    onto_targets = onto_ends(weight * at_ends(charges, pairs, 0.0, 1.0), pairs, 1.0, 0.0)
    return onto_targets + onto_ends(weight * at_ends(charges, pairs, 1.0, 0.0), pairs, 0.0, 1.0)
