"""The uncertainty of a step's energies: one product of the inputs of the last layer with a fixed matrix.

See torchmdx/models/uncertainty.py: σ² = |fᵀ R|². Shapes are fixed, and nothing is read on the host.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchmdx.models.ensemble import Ensemble, members_of
from torchmdx.models.potential import Potential
from torchmdx.models.uncertainty import with_uncertainty
from torchmdx.step.buffer_storage import SPREADS, UNCERTAINTIES, Doubts
from torchmdx.structures.system import Batch


def doubts_of(potential: Potential | Ensemble) -> Doubts | None:
    """What a step computes for this potential besides energies and forces; None for nothing."""
    if isinstance(potential, Ensemble):
        return SPREADS
    return None if potential.uncertainty is None else UNCERTAINTIES


def for_step(potential: Potential | Ensemble, wanted: bool) -> Potential | Ensemble:
    """The potential of a step; without its uncertainty, unless that is wanted.

    Raises:
        ValueError: If it is wanted of an ensemble, or of a potential that does not know it.
    """
    if not wanted:
        if all(member.uncertainty is None for member in members_of(potential)):
            return potential
        if isinstance(potential, Ensemble):
            return potential.with_members([with_uncertainty(member, None) for member in potential])
        return with_uncertainty(potential, None)
    if isinstance(potential, Ensemble):
        raise ValueError("uncertainty needs a single potential, got an ensemble, whose spread takes its place")
    if potential.uncertainty is None:
        raise ValueError(
            f"uncertainty needs a potential that knows it, got {potential.card.title} without: "
            "`torchmdx uncertainty FILE DATA` adds it"
        )
    return potential


def wants_uncertainty(
    potential: Potential | Ensemble, devices: Any, asked: bool | None, most: float | None = None
) -> bool:
    """Whether to compute uncertainties, as asked for; None: if the potential knows them and is on one CPU.

    On a GPU it has to be asked for.

    Args:
        devices: Several, or None.
        most: A limit on uncertainties, which needs them.

    Raises:
        ValueError: If they are wanted and cannot be had.
    """
    known = isinstance(potential, Potential) and potential.uncertainty is not None
    wanted = (known and devices is None and potential.device.type == "cpu") if asked is None else asked
    if (wanted or most is not None) and devices is not None:
        raise ValueError(f"uncertainty and max_uncertainty need one device, got {', '.join(map(str, devices))}")
    if most is not None and asked is False:
        raise ValueError(f"max_uncertainty needs uncertainty=True or None, got False and {most} eV")
    if asked:
        for_step(potential, True)
    return wanted or most is not None


class UncertaintyProduct:
    """σ(E) [S] and σ_i [N], eV, float64, of a batch from the inputs of the last layer [N,D]; buffers, reused on a CPU.

    Args:
        potential: With an uncertainty.
        batch: In the order of the inputs.
    """

    def __init__(self, potential: Potential, batch: Batch) -> None:
        assert potential.uncertainty is not None
        self.batch, root = batch, potential.uncertainty.root
        self.root = root.to(potential.device)
        # On the CPU: the matrix in the dtype of the inputs, and results that are reused.
        self.array = root.to(potential.dtype).numpy()
        self.ones = np.ones(batch.num_atoms, dtype=self.array.dtype)
        self.of_systems, self.of_atoms = np.zeros(batch.num_systems), np.zeros(batch.num_atoms)
        self.results = torch.from_numpy(self.of_systems), torch.from_numpy(self.of_atoms)

    def __call__(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        batch = self.batch
        if inputs.is_cuda:  # in float64, whose products no setting of the process rounds
            products = inputs.double() @ self.root
            sums = products.new_zeros(batch.num_systems, len(self.root)).index_add(0, batch.system_index, products)
            return torch.linalg.vector_norm(sums, dim=-1), torch.linalg.vector_norm(products, dim=-1)
        # For a molecule, calls of NumPy take a third of the time of torch's.
        values = inputs.numpy() @ self.array
        if batch.num_systems == 1:
            total = self.ones @ values
            self.of_systems[0] = math.sqrt(total @ total)
        else:
            totals = np.zeros((batch.num_systems, len(self.array)))
            np.add.at(totals, batch.system_index.numpy(), values)
            np.sqrt(np.einsum("ij,ij->i", totals, totals), out=self.of_systems)
        np.sqrt(np.einsum("ij,ij->i", values, values), out=self.of_atoms)
        return self.results
