"""Descriptors: the invariant features from which a network computes the energies of the atoms."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from torchmdx.engines.pairs.network import features
from torchmdx.engines.plan import Network
from torchmdx.evaluation.properties.pairs import Pairs
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.runtime.device_guard import device_of_potential, runs_on
from torchmdx.runtime.isolation import isolated
from torchmdx.structures.system import System


@runs_on(device_of_potential)
@isolated
@torch.no_grad()
def descriptors(potential: Potential | Ensemble, system: System) -> Tensor:
    """Features [N,C] of the atoms of a structure, the input of the energy head, in the dtype of the potential.

    They do not change under translation, rotation and, for models of the group O(3), reflection; permuted atoms have
    permuted rows. For an ensemble the features of its members follow each other, [N,ΣC]. Raises as `Pairs.of`.
    """
    members = list(potential) if isinstance(potential, Ensemble) else [potential]
    if not system.num_atoms:  # as wide as those of any atom
        known = members[0].card.elements or (1,)
        return descriptors(potential, System.create([[0.0, 0.0, 0.0]], known[:1]))[:0]
    pairs = Pairs.of(potential, system)
    return torch.cat([_features(member, pairs) for member in members], dim=-1)


def _features(potential: Potential, pairs: Pairs) -> Tensor:
    batch, edges, dtype = pairs.batch, pairs.edges, potential.dtype
    if Network.of(potential).has_pairs:
        found = pairs.list()
        vectors = found.vectors(batch.positions, batch.cell, batch.system_index).to(dtype)
        return features(potential.network, found, vectors, batch)[0]
    vectors = edges.vectors(batch.positions, batch.cell, batch.system_index).to(dtype)
    rounded = replace(batch, positions=batch.positions.to(dtype), cell=batch.cell.to(dtype))
    return potential.features(rounded, edges, vectors)[0]
