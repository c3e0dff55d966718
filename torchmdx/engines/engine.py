"""What every engine does, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from torchmdx.neighbors.edges import Edges


@dataclass(frozen=True, eq=False)
class Outputs:
    """energy [S] and energies [N] float64, forces [N,3], stress [S,3,3] if wanted; eV and Å.

    Of an ensemble, energy_spread [S] and force_spread [N] float64 too.
    """

    energy: Tensor
    energies: Tensor
    forces: Tensor
    stress: Tensor | None
    energy_spread: Tensor | None = None
    force_spread: Tensor | None = None

    @property
    def spread(self) -> tuple[Tensor, Tensor] | None:
        """Of energy and forces; None for a single potential."""
        return (
            None if self.energy_spread is None or self.force_spread is None else (self.energy_spread, self.force_spread)
        )


class Engine(Protocol):
    """Evaluates one batch again and again, at changing positions and cell."""

    name: str
    # Largest error of tabulated filters against the exact ones, relative to the largest; 0 where there is no table.
    table_error: float

    def reserve(self, capacity: int) -> None:
        """Makes room for as many edges; before the first run, and whenever the list has grown."""

    def run(self, positions: Tensor, cell: Tensor, edges: Edges, *, forces: bool = True) -> Outputs:
        """Launches one evaluation; what it returns may be the same tensors every time.

        positions and cell are as exact as the potential, or more.
        forces=False: energies only; the forces and stress of the answer are stale.
        """
