"""Padding: sizes that structures share, and positions of padding atoms without neighbours."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from torchmdx.structures.system import Batch, System

# Padded sizes: multiples of 8 up to 64 atoms, then an eighth more each time. Larger structures are not padded.
LARGEST_PADDED = 4096
# Distance between padding atoms, in cutoffs.
PADDING_SPACING = 1.5


def padded_size(count: int) -> int:
    """Number of atoms, with padding, of the step that evaluates a structure of `count` atoms."""
    if count > LARGEST_PADDED:
        return count
    size = 8
    while size < count:
        size += max(8, size // 64 * 8)
    return size


def padded(system: System, size: int, cutoff: float) -> Batch:
    """The system, and a second one of size - N padding atoms without neighbours; the second may be empty."""
    positions, numbers, given = system.positions, system.atomic_numbers, system.partial_charges
    count, missing = system.num_atoms, size - system.num_atoms
    # An element of the system, which the potential must support anyway.
    element = numbers[:1] if count else numbers.new_ones(1)
    return Batch(
        positions=torch.cat([positions, _grid(missing, cutoff).to(positions)]),
        atomic_numbers=torch.cat([numbers, element.expand(missing)]),
        system_index=(torch.arange(size, device=numbers.device) >= count).long(),
        cell=torch.stack([system.cell, torch.zeros_like(system.cell)]),
        pbc=torch.stack([system.pbc, torch.zeros_like(system.pbc)]),
        charge=positions.new_tensor([system.charge, 0.0]),
        partial_charges=None if given is None else torch.cat([given, given.new_zeros(missing)]),
    )


def padded_atoms(count: int) -> int:
    """Number of atoms, with padding, of a batch of `count` atoms: eight sizes per factor of two."""
    count = max(count, 1)
    unit = max(8, 1 << max(0, count.bit_length() - 4))
    return -(-count // unit) * unit


def padding_positions(count: int, cutoff: float) -> Tensor:
    """Positions [count,3] Å of padding atoms, float64, on a grid with a spacing larger than the cutoff."""
    return _grid(count, cutoff).clone()


@functools.lru_cache(maxsize=256)
def _grid(count: int, cutoff: float) -> Tensor:
    side = max(1, int(np.ceil(max(count, 1) ** (1 / 3))))
    index = torch.arange(count, device="cpu")
    grid = torch.stack([index % side, index // side % side, index // side**2], dim=1)
    return grid.double() * (PADDING_SPACING * cutoff)


def padded_batch(batch: Batch, num_atoms: int, num_systems: int, cutoff: float) -> Batch:
    """The batch with padding up to these sizes: systems of padding atoms without neighbours, of equal sizes or empty.

    Needs at least one more system than the batch has if there are padding atoms. One large system of them would have
    the neighbour list searched with bins, which have to be made again whenever the sizes of systems change.
    """
    atoms, systems = num_atoms - batch.num_atoms, num_systems - batch.num_systems
    if atoms < 0 or systems < 0 or (atoms and not systems):
        raise ValueError(
            f"a batch of {batch.num_atoms} atoms in {batch.num_systems} systems can't be padded to "
            f"{num_atoms} atoms in {num_systems} systems"
        )
    if not systems:
        return batch
    device, dtype = batch.positions.device, batch.positions.dtype
    # An element of the batch, which the potential must support anyway.
    element = batch.atomic_numbers[:1] if batch.num_atoms else batch.atomic_numbers.new_ones(1)
    given = batch.partial_charges
    share = torch.arange(atoms, device=device) * systems // max(atoms, 1)
    return Batch(
        positions=torch.cat([batch.positions, padding_positions(atoms, cutoff).to(device, dtype)]),
        atomic_numbers=torch.cat([batch.atomic_numbers, element.expand(atoms)]),
        system_index=torch.cat([batch.system_index, batch.num_systems + share]),
        cell=torch.cat([batch.cell, batch.cell.new_zeros(systems, 3, 3)]),
        pbc=torch.cat([batch.pbc, batch.pbc.new_zeros(systems, 3)]),
        charge=torch.cat([batch.charge, batch.charge.new_zeros(systems)]),
        partial_charges=None if given is None else torch.cat([given, given.new_zeros(atoms)]),
    )


def without_padding(batch: Batch, num_atoms: int, num_systems: int) -> Batch:
    """The first atoms and systems of a batch from `padded_batch`, as views."""
    given = batch.partial_charges
    return Batch(
        positions=batch.positions[:num_atoms],
        atomic_numbers=batch.atomic_numbers[:num_atoms],
        system_index=batch.system_index[:num_atoms],
        cell=batch.cell[:num_systems],
        pbc=batch.pbc[:num_systems],
        charge=batch.charge[:num_systems],
        partial_charges=None if given is None else given[:num_atoms],
    )
