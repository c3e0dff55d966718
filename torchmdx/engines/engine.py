"""The interface of all engines, and their results."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from torchmdx.engines.plan import Plan
from torchmdx.evaluation.derivatives import are_together
from torchmdx.neighbors.edges import Edges
from torchmdx.structures.system import Batch


@dataclass(frozen=True, eq=False)
class Outputs:
    """energy [S] and energies [N] float64, forces [N,3], stress [S,3,3] if requested; eV and Å.

    For an ensemble also energy_spread [S] and force_spread [N], float64. For a potential with an uncertainty the inputs
    of its last layer [N,D], zero for atoms that a domain does not own, and from an engine that computes them also the
    uncertainties of energy [S] and energies [N], float64.
    """

    energy: Tensor
    energies: Tensor
    forces: Tensor
    stress: Tensor | None
    energy_spread: Tensor | None = None
    force_spread: Tensor | None = None
    last_inputs: Tensor | None = None
    uncertainties: tuple[Tensor, Tensor] | None = None

    @property
    def spread(self) -> tuple[Tensor, Tensor] | None:
        """(energy_spread, force_spread); None for a single potential."""
        return (
            None if self.energy_spread is None or self.force_spread is None else (self.energy_spread, self.force_spread)
        )


def marked(outputs: Outputs, batch: Batch, edges: Edges) -> Outputs:
    """The outputs for a batch, with energies and forces that are NaN where atoms coincide, as those of the kernels.

    A model has finite results for atoms that are apart by any distance, however wrong. Reads nothing on the host.
    """
    vectors = edges.vectors(batch.positions.detach(), batch.cell.detach(), batch.system_index)
    flaws = torch.where(are_together(vectors), torch.nan, 0.0).to(outputs.energies.dtype)
    of_atoms = torch.zeros_like(outputs.energies).index_add(0, edges.target, flaws)
    of_systems = torch.zeros_like(outputs.energy).index_add(0, batch.system_index, of_atoms)
    forces = outputs.forces + of_atoms[:, None].to(outputs.forces.dtype)
    return replace(outputs, energy=outputs.energy + of_systems, energies=outputs.energies + of_atoms, forces=forces)


class Engine(Protocol):
    """Evaluates one batch repeatedly, at changing positions and cell.

    An engine whose sums may be in another order each time, as those of autograd on a GPU, has `deterministic = False`.
    """

    name: str
    # Of `choose_engine`; None for an engine that was made otherwise.
    plan: Plan | None
    # Largest error of tabulated filters against the exact ones, relative to the largest; 0 without a table.
    table_error: float

    def reserve(self, capacity: int) -> None:
        """Allocates for `capacity` edges. Called before the first run, and whenever the list has grown."""

    def run(self, positions: Tensor, cell: Tensor, edges: Edges, *, forces: bool = True) -> Outputs:
        """Launches one evaluation; may return the same tensors every time.

        positions and cell have at least the precision of the potential.
        forces=False: energies only; forces and stress of the result are stale.
        """
