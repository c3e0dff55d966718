"""Domain: the part of one system that a process evaluates, with copies of the atoms around it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchmdx.structures.system import Batch


@dataclass(frozen=True, eq=False, kw_only=True)
class Domain(Batch):
    """A batch of one system: owned atoms, then copies of other atoms (ghosts), then padding atoms.

    Energy and virial are those of the owned atoms; forces are minus their derivatives by the positions of all atoms.
    hops [N] int32, ascending: 0 for owned atoms; for ghosts a lower bound, at least 1, of the steps from neighbour to
    neighbour between an owned atom and them. within [K] int32: number of atoms with at most k hops, for k < K. Padding
    atoms have K hops and no neighbours among the others.
    """

    hops: Tensor
    within: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_systems != 1 or self.hops.shape != (self.num_atoms,) or self.within.dim() != 1:
            raise ValueError(
                f"a domain needs one system, hops of shape {[self.num_atoms]} and within of one dimension, got "
                f"{self.num_systems}, {list(self.hops.shape)} and {self.within.dim()}"
            )


def of_owned(energies: Tensor, batch: Batch) -> Tensor:
    """Energies [N] of atoms; zero for those that a domain does not own."""
    return torch.where(batch.hops == 0, energies, 0.0) if isinstance(batch, Domain) else energies
