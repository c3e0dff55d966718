"""One structure with its pairs, for functions that differentiate or read a network."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchmdx.engines.pairs.pair_list import PairList
from torchmdx.evaluation.derivatives import require_apart
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.neighbors.edges import Edges
from torchmdx.neighbors.search import EdgeSearch
from torchmdx.runtime.fork_guard import check_fork
from torchmdx.structures.cell import recentre
from torchmdx.structures.system import Batch, System


@dataclass(frozen=True, eq=False)
class Pairs:
    """A batch of one structure for a potential, its edges, and the slots of their reverses.

    Positions and cell are in float64, the rest in the dtype of the potential, whose device has all of them.
    """

    batch: Batch
    edges: Edges
    reverse: Tensor

    @classmethod
    def of(cls, potential: Potential | Ensemble, system: System) -> Pairs:
        """Searches within the cutoff of the potential.

        Raises:
            ValueError: For unsupported elements and coincident atoms.
            CapacityError: For a cell that cannot be searched.
        """
        check_fork(potential.device)
        exact = Batch.of(system).to(potential.device, torch.float64)
        near = recentre(exact.positions.detach(), exact.cell, exact.pbc, exact.system_index)
        # Positions and cell stay in float64: differences of positions are taken before rounding.
        batch = replace(exact.to(dtype=potential.dtype), positions=near, cell=exact.cell)
        potential.require_elements(batch.atomic_numbers)
        search = EdgeSearch(potential.search_cutoff(batch), reverse=True)
        edges = search.allocate(batch)
        assert search.reverse is not None
        require_apart(edges, edges.vectors(batch.positions, batch.cell, batch.system_index))
        return cls(batch, edges, search.reverse)

    def list(self) -> PairList:
        """The pairs, each once for both directions."""
        return PairList.of(self.edges, self.reverse)
