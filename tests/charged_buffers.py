"""Buffers of TensorNet2's kernels after a run, by one program per atom or by the other kernels."""

from dataclasses import replace

import torch
from interpreter import DEVICE

from torchmdx import System
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.system import Batch


def batch_of(atoms):
    """A structure at positions that float32 holds exactly."""
    return Batch.from_systems([System.from_ase(atoms)]).to(DEVICE, torch.float32)


def buffers_of(fast, batch, radius, *, rows, forces=True):
    """The buffers after a run with a list of this radius."""
    edges = brute_force(batch.to(DEVICE, torch.float64), radius)
    tiles = fast.choose_tiles(batch.num_atoms)
    tiles = tiles if rows else replace(tiles, row=None)
    buffers = fast.allocate(batch.num_atoms, 1, edges.capacity, forces=forces, tiles=tiles)
    assert buffers.sizes.one_program_per_atom == rows
    inputs = (batch.positions, batch.atomic_numbers, batch.system_index, batch.cell, batch.charge, edges)
    return fast.run(*inputs, forces=forces)
