"""Padding: atoms without neighbours, and sizes that structures share."""

import pytest
import torch

from torchmdx import Batch, System
from torchmdx.step.padding import (
    LARGEST_PADDED,
    padded,
    padded_atoms,
    padded_batch,
    padded_size,
    padding_positions,
)


@pytest.mark.parametrize("count", [0, 1, 9, 64])
def test_padding_atoms_are_not_neighbours(count):
    places = padding_positions(count, 5.0)
    assert places.shape == (count, 3)
    assert places.dtype == torch.float64
    assert (torch.pdist(places) > 5.0).all()


def test_a_padded_structure_is_itself_and_a_second_system():
    system = System.create([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]], [8, 1], charge=-1)
    batch = padded(system, 5, 3.0)
    assert batch.counts().tolist() == [2, 3]
    assert torch.equal(batch.positions[:2], system.positions)
    assert torch.equal(batch.positions[2:], padding_positions(3, 3.0))
    assert batch.charge.tolist() == [-1, 0]


@pytest.mark.parametrize("size", [padded_size, padded_atoms])
def test_sizes_hold_what_they_are_for_and_are_few(size):
    sizes = [size(count) for count in range(1, LARGEST_PADDED + 1)]
    assert all(found >= count for count, found in enumerate(sizes, 1))
    assert sizes == sorted(sizes)
    assert len(set(sizes)) < 80


def test_a_padded_batch_is_itself_with_systems_at_its_end():
    water = System.create([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]], [8, 1], charge=-1, partial_charges=[-1.0, 0.0])
    batch = Batch.from_systems([water, water])
    filled = padded_batch(batch, 7, 5, 3.0)
    assert filled.counts().tolist() == [2, 2, 1, 1, 1]
    assert torch.equal(filled.positions[:4], batch.positions)
    assert torch.equal(filled.positions[4:], padding_positions(3, 3.0))
    assert filled.charge.tolist() == [-1, -1, 0, 0, 0]
    assert filled.partial_charges.tolist() == [-1, 0, -1, 0, 0, 0, 0]
    assert padded_batch(batch, 4, 2, 3.0) is batch
    assert padded_batch(batch, 4, 4, 3.0).counts().tolist() == [2, 2, 0, 0]


@pytest.mark.parametrize(("atoms", "systems", "counts"), [(9, 4, [3, 2]), (5, 5, [1, 0, 0]), (4, 3, [0]), (9, 3, [5])])
def test_padding_atoms_are_shared_among_the_systems_at_the_end(atoms, systems, counts):
    """Large systems of them would change how the list of many small structures is searched."""
    water = System.create([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]], [8, 1])
    filled = padded_batch(Batch.from_systems([water, water]), atoms, systems, 3.0)
    assert filled.counts().tolist() == [2, 2, *counts]
    assert torch.equal(filled.system_index, filled.system_index.sort().values)


@pytest.mark.parametrize("sizes", [(3, 2), (4, 1), (5, 2)])
def test_a_batch_is_padded_only_to_sizes_that_hold_it(sizes):
    water = System.create([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]], [8, 1])
    with pytest.raises(ValueError, match=f"4 atoms in 2 systems can't be padded to {sizes[0]} atoms in {sizes[1]}"):
        padded_batch(Batch.from_systems([water, water]), *sizes, 3.0)
