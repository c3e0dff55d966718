"""The input of priors from distances of pairs, with sums in a fixed order on a GPU."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchmdx.engines.pairs.coulomb import fused_pairs
from torchmdx.engines.pairs.edge_values import to_edges, to_targets
from torchmdx.engines.pairs.pair_list import PairList
from torchmdx.models.priors.base import Geometry, Lattice, OpenPairPrior
from torchmdx.models.priors.coulomb import Coulomb
from torchmdx.neighbors.edges import PADDED_LENGTH
from torchmdx.structures.system import Batch


@dataclass(frozen=True, eq=False)
class PairGeometry(Geometry):
    """Geometry with the pairs of its edges. Values of atoms at padded edges, which have no atoms, are 1."""

    pairs: PairList = field(kw_only=True)

    def at_target(self, values: Tensor) -> Tensor:
        return self._at(values, source=False)

    def at_source(self, values: Tensor) -> Tensor:
        return self._at(values, source=True)

    def onto_targets(self, values: Tensor) -> Tensor:
        return to_targets(self.pairs, values[:, None]).squeeze(-1)

    def open_pairs(self, prior: OpenPairPrior, charges: Tensor) -> Tensor:
        """On a GPU, Coulomb energies are computed by a kernel that stores nothing per pair."""
        if self.distance.is_cuda and type(prior) is Coulomb:
            return fused_pairs(prior, self.batch, self.positions, charges)
        return super().open_pairs(prior, charges)

    def _at(self, values: Tensor, source: bool) -> Tensor:
        if not values.is_floating_point():
            return values.index_select(0, self.edges.source if source else self.edges.target)
        columns = values[:, None] if values.dim() == 1 else values
        ends = (None, columns) if source else (columns, None)
        rows = to_edges(self.pairs, None, *ends, own=False)
        return torch.where(self.edges.filled()[:, None], rows, 1.0).reshape(-1, *values.shape[1:])


def pair_geometry(
    batch: Batch, pairs: PairList, vectors: Tensor, lattice: Lattice, charges: Tensor | None
) -> PairGeometry:
    """The geometry from vectors [P,3] of the pairs, in the dtype of which priors get positions."""
    distance = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    of_edges = to_edges(pairs, distance, own=False).squeeze(-1)
    distance = torch.where(pairs.edges.filled(), of_edges, PADDED_LENGTH)
    positions = lattice.positions.to(vectors.dtype)
    return PairGeometry(batch, pairs.edges, distance, positions, charges, lattice, pairs=pairs)
