"""The interface of all engines, and their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from torchmdx.neighbors.edges import Edges


@dataclass(frozen=True, eq=False)
class Outputs:
    """energy [S] and energies [N] float64, forces [N,3], stress [S,3,3] if requested; eV and Å.

    For an ensemble also energy_spread [S] and force_spread [N], float64.
    """

    energy: Tensor
    energies: Tensor
    forces: Tensor
    stress: Tensor | None
    energy_spread: Tensor | None = None
    force_spread: Tensor | None = None

    @property
    def spread(self) -> tuple[Tensor, Tensor] | None:
        """(energy_spread, force_spread); None for a single potential."""
        return (
            None if self.energy_spread is None or self.force_spread is None else (self.energy_spread, self.force_spread)
        )


class Engine(Protocol):
    """Evaluates one batch repeatedly, at changing positions and cell."""

    name: str
    # Largest error of tabulated filters against the exact ones, relative to the largest; 0 without a table.
    table_error: float

    def reserve(self, capacity: int) -> None:
        """Allocates for so many edges. Called before the first run, and whenever the list has grown."""

    def run(self, positions: Tensor, cell: Tensor, edges: Edges, *, forces: bool = True) -> Outputs:
        """Launches one evaluation; may return the same tensors every time.

        positions and cell have at least the precision of the potential.
        forces=False: energies only; forces and stress of the result are stale.
        """
