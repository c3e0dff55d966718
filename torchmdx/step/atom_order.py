"""The order of atoms in a step: along a space-filling curve, so that neighbours in space are neighbours in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from torchmdx.models.fast import curve_order
from torchmdx.system import Batch

# Below this a whole structure fits in the GPU's cache, and order gains nothing (measured).
FEWEST_ATOMS = 6000


def choose_order(batch: Batch, positions: Tensor, cell: Tensor) -> Tensor | None:
    """Atom numbers [N] int32 along a curve, system by system; None where order gains nothing, or isn't defined."""
    if batch.num_atoms < FEWEST_ATOMS or batch.positions.device.type != "cuda":
        return None
    if not bool(torch.isfinite(positions).all() & torch.isfinite(cell).all()):
        return None
    return curve_order(positions, cell, batch.pbc, batch.system_index).to(torch.int32)
