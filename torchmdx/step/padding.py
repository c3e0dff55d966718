"""Padding: sizes that structures share, and places for atoms that must not see each other."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchmdx.system import Batch, System

# Padded sizes: every eighth up to 64 atoms, then an eighth more each time. Beyond the last, structures come alone.
LARGEST_PADDED = 4096
# Padding atoms are placed this many cutoffs apart, and belong to a system of their own.
APART = 1.5


def padded_size(count: int) -> int:
    """The size of step that a structure of so many atoms shares."""
    if count > LARGEST_PADDED:
        return count
    size = 8
    while size < count:
        size += max(8, size // 64 * 8)
    return size


def padded(system: System, size: int, cutoff: float) -> Batch:
    """The system, and a second one of size - N atoms too far apart to see each other; the second may be empty."""
    missing = size - system.num_atoms
    filling = System(
        positions=apart(missing, cutoff).to(system.positions.dtype),
        # An element that the potential knows if it knows the system.
        atomic_numbers=torch.full((missing,), int(system.atomic_numbers[0]) if system.num_atoms else 1),
        cell=torch.zeros_like(system.cell),
        pbc=torch.zeros_like(system.pbc),
        charge=0.0,
        partial_charges=None if system.partial_charges is None else system.partial_charges.new_zeros(missing),
    )
    return Batch.from_systems([system, filling])


def padded_atoms(count: int) -> int:
    """A size that batches of about so many atoms share: eight to a doubling."""
    count = max(count, 1)
    unit = max(8, 1 << max(0, count.bit_length() - 4))
    return -(-count // unit) * unit


def apart(count: int, cutoff: float) -> Tensor:
    """Places [count,3] Å of padding atoms, float64, on a grid wider than the cutoff."""
    side = max(1, int(np.ceil(max(count, 1) ** (1 / 3))))
    index = torch.arange(count)
    grid = torch.stack([index % side, index // side % side, index // side**2], dim=1)
    return grid.double() * (APART * cutoff)
