"""Buffers of TensorNet2's kernels after a run, by one program per atom or by the other kernels."""

from dataclasses import replace

import torch
from interpreter import DEVICE

from torchmdx import System
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.structures.system import Batch


def batch_of(atoms):
    """A structure at positions that float32 holds exactly."""
    return Batch.from_systems([System.from_ase(atoms)]).to(DEVICE, torch.float32)


def replanned(fast, **changes):
    """The kernels, with plans in which these entries are changed."""
    planned = fast.planned
    fast.planned = lambda work, tiles=None: replace(planned(work, tiles), **changes)
    return fast


def buffers_of(fast, batch, radius, *, rows, forces=True):
    """The buffers after a run with a list of this radius."""
    edges = brute_force(batch.to(DEVICE, torch.float64), radius)
    tiles = fast.choose_tiles(batch.num_atoms)
    tiles = tiles if rows else replace(tiles, row=None)
    buffers = fast.allocate(batch.num_atoms, 1, edges.capacity, forces=forces, tiles=tiles)
    assert buffers.sizes.one_program_per_atom == rows
    inputs = (batch.positions, batch.atomic_numbers, batch.system_index, batch.cell, batch.charge, edges)
    return fast.run(*inputs, forces=forces)


def require_equal_bits(fast, first, batch, radius):
    """A second run with the buffers of the first one gives its results, also if all scratch has other values before."""
    kept = [t.clone() for t in (first.energies, first.energy, first.forces, first.virial)]
    for tensor in first.scratch.tensors():
        tensor.fill_(float("nan") if tensor.is_floating_point() else -7)
    edges = brute_force(batch, radius, capacity=first.sizes.capacity)
    single = batch.to(DEVICE, torch.float32)
    inputs = (single.positions, single.atomic_numbers, single.system_index, single.cell, single.charge, edges)
    again = fast.run(*inputs, virial=True)
    for old, new in zip(kept, (again.energies, again.energy, again.forces, again.virial), strict=True):
        assert torch.equal(old, new)
