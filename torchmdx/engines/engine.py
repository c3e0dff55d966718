"""What an engine answers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


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
