"""The order of atoms in slabs: neighbours are nearby, across periodic boundaries too."""

import numpy as np
import pytest
import torch

from torchmdx.engines.gpu.slab_layout import SlabLayout
from torchmdx.lammps.example import water
from torchmdx.step import slab_order as module
from torchmdx.step.device_memory import checked_memory, require_memory
from torchmdx.step.results import OutOfDeviceMemory
from torchmdx.step.slab_order import slab_order
from torchmdx.structures.system import Batch, System


def box(shape, pbc, count=1500):
    """Random atoms in a skewed cell."""
    positions = np.random.default_rng(0).uniform(0, 1, (count, 3)) @ np.array(shape)
    return Batch.of(System.create(positions, np.ones(count, int), shape, pbc))


SKEWED = [[40.0, 0, 0], [6, 18, 0], [-3, 2, 20]]


def slabs_of(batch, layout, cutoff=3.0):
    order = slab_order(batch.positions, batch.cell, batch.pbc, layout, cutoff)
    assert order.sort().values.tolist() == list(range(batch.num_atoms))
    slab = torch.empty(len(order), dtype=torch.int64)
    slab[order] = torch.arange(len(order)) // layout.rows
    return slab


@pytest.mark.nightly_for("True-2")
@pytest.mark.parametrize("reach", [1, 2, 3])
@pytest.mark.parametrize("pbc", [True, False, [False, True, True], [True, False, False]], ids=str)
def test_neighbours_are_at_most_reach_slabs_apart(pbc, reach, monkeypatch):
    monkeypatch.setattr(module, "ROWS", 4)
    batch, layout = box(SKEWED, pbc), SlabLayout(reach, 0.5)
    slab = slabs_of(batch, layout)
    assert 2 * layout.rows < batch.num_atoms
    images = torch.tensor([[a, b, c] for a in (-1, 0, 1) for b in (-1, 0, 1) for c in (-1, 0, 1)]).double()
    images = images[(images[:, ~batch.pbc[0]] == 0).all(1)] @ batch.cell[0]
    for image in images:
        near = torch.cdist(batch.positions, batch.positions + image) <= 3.5
        here, there = near.nonzero().T
        assert ((slab[here] - slab[there]).abs() <= reach).all()


def test_a_layout_that_is_set_is_kept():
    batch, layout = box(SKEWED, True), SlabLayout(1, 0.0, rows=128, axis=2)
    slab = slabs_of(batch, layout)
    assert (layout.rows, layout.axis) == (128, 2)
    assert slab.bincount().tolist() == [128] * 11 + [92]
    layout.forget()
    slabs_of(batch, layout)
    assert (layout.axis, layout.rows % 64) == (0, 0)


def test_few_atoms_are_one_slab():
    batch, layout = Batch.of(System.from_ase(water(4))), SlabLayout()
    assert slabs_of(batch, layout).unique().tolist() == [0]
    assert layout.rows == 64


def test_memory_must_be_that_of_a_gpu():
    with pytest.raises(ValueError, match="max_memory needs a GPU, got a potential on the cpu"):
        checked_memory(10**9, torch.device("cpu"))
    with pytest.raises(ValueError, match="max_memory must be >= 1 byte, got -1"):
        checked_memory(-1, torch.device("cuda"))
    assert checked_memory(None, torch.device("cpu")) is None
    assert checked_memory(2e9, torch.device("cuda")) == 2_000_000_000


def test_a_step_that_takes_more_than_it_may():
    batch = box(SKEWED, True)
    require_memory(10**9, None, batch)
    require_memory(10**9, 10**9, batch)
    with pytest.raises(OutOfDeviceMemory, match=r"at least 1 GB for 1,500 atoms in 1 systems, got 0.5 GB"):
        require_memory(10**9, 5 * 10**8, batch)
