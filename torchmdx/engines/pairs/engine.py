"""The pairwise network as an engine: any TensorNet or TensorNet2, with any priors."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor

from torchmdx.engines.engine import Outputs, marked
from torchmdx.engines.pairs import energy as pair_energy
from torchmdx.engines.pairs.near_list import NearList
from torchmdx.engines.pairs.pair_list import PairList
from torchmdx.engines.plan import Plan
from torchmdx.models.potential import Potential
from torchmdx.models.priors.base import shapes_are_fixed
from torchmdx.neighbors.capacity import with_head_room
from torchmdx.neighbors.edges import Edges
from torchmdx.neighbors.reverse import find_reverse
from torchmdx.runtime.device_guard import device_of_positions, runs_on
from torchmdx.structures.system import Batch


class PairEngine:
    """The network that training uses, without gradients of weights: any TensorNet or TensorNet2, with any priors."""

    table_error = 0.0
    plan: Plan | None = None

    def __init__(self, potential: Potential, batch: Batch, *, stress: bool) -> None:
        self.name = f"pairs, {str(potential.dtype).removeprefix('torch.')}"
        # Otherwise every backward pass would compute gradients of the weights.
        self.potential = copy.deepcopy(potential).requires_grad_(False).with_kept_lists()
        self.batch, self.stress = batch, stress
        # If a prior has a longer cutoff than the network, the network gets its own list.
        cutoff = float(potential.config.cutoff)
        self.near = NearList(cutoff) if potential.search_cutoff(batch) > cutoff else None

    def reserve(self, capacity: int) -> None:
        if self.near is not None:
            self.near.capacity = None
        self.reverse = torch.zeros(capacity, dtype=torch.int32, device=self.batch.positions.device)

    @runs_on(device_of_positions)
    def run(self, positions: Tensor, cell: Tensor, edges: Edges, *, forces: bool = True) -> Outputs:
        find_reverse(edges, self.reverse)
        batch, stress = replace(self.batch, positions=positions, cell=cell), self.stress and forces
        result = pair_energy.differentiate_pairwise(
            self.potential, batch, edges, self.reverse,
            forces=forces, stress=stress, create_graph=False, near=self._nearer(batch, edges),
        )  # fmt: skip
        if result.forces is None:
            stale = torch.zeros_like(cell) if self.stress else None
            nothing = torch.zeros_like(positions, dtype=self.potential.dtype)
            outputs = Outputs(result.energy, result.energies, nothing, stale)
        else:
            found = result.forces.to(self.potential.dtype)
            outputs = Outputs(result.energy, result.energies, found, result.stress)
        return marked(replace(outputs, last_inputs=result.last_inputs), batch, edges)

    def _nearer(self, batch: Batch, edges: Edges) -> PairList | None:
        """The pairs within the network's cutoff, if it has its own list.

        The first run after `reserve` chooses the capacity. It reads the device and must not be captured.
        """
        if self.near is None or not edges.capacity:
            return None
        if self.near.capacity is None:
            if shapes_are_fixed(batch.positions):
                return None
            self.near.capacity = with_head_room(self.near.count(batch, edges, self.reverse), batch.num_atoms)
        return self.near.pairs(batch, edges, self.reverse)
