"""What the plugin asks of Python: a provider for a force, a session for a Context, addresses in a captured step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Handles:
    """Addresses in a captured step: graphs (energy_graph 0 for none), device buffers in float64, pinned host memory.

    Attributes:
        audit_every: Evaluations between audits, 0 for none.
        audit_failed: Of a host int64, not 0 after a failed audit.
        num_links: Link atoms, the last atoms of the step, in whose place the force has their outer atoms; link_inner,
            link_distances: of device int32 places of the inner atoms, and float64 distances in Å.
    """

    graph: int
    energy_graph: int
    positions: int
    cell: int
    forces: int
    device_flags: int
    host_energy: int
    host_flags: int
    audit_every: int = 0
    audit_failed: int = 0
    num_links: int = 0
    link_inner: int = 0
    link_distances: int = 0


class Session(Protocol):
    """The evaluation for one Context. Positions [n,3] and cell [3,3] in Å; energies in eV, forces in eV/Å."""

    num_atoms: int

    def start(self, positions: NDArray[np.float64], cell: NDArray[np.float64] | None) -> Handles:
        """On a GPU, before the first evaluation and after a failed recovery: captures missing graphs."""

    def recover(self, energy_only: bool) -> Handles:
        """Repeats the evaluation of the inputs in the device buffers after a flag was set; raises if that fails.

        Graphs of earlier handles may be destroyed, even if it raises: C++ holds none meanwhile.
        """

    def audit(self, evaluation: int, step: int) -> None:
        """Starts an audit of the results in the device buffers; raises if the previous audit failed.

        Args:
            step: Of the Context, at which the evaluation was made.
        """

    def evaluate(
        self, positions: NDArray[np.float64], cell: NDArray[np.float64] | None, *, with_forces: bool = True
    ) -> tuple[float, NDArray[np.float64]]:
        """Energy and forces on CPU platforms; the forces are not used without with_forces."""

    def close(self) -> None:
        """Ends the session, when its Context is destroyed."""


class Provider(Protocol):
    """Opens sessions for one force."""

    def open(self, device: int | None) -> Session:
        """device: index of the CUDA device of the Context, None on a CPU platform."""
