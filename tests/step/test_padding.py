"""Padding: atoms without neighbours, and sizes that structures share."""

import pytest
import torch

from torchmdx import System
from torchmdx.step.padding import LARGEST_PADDED, padded, padded_atoms, padded_size, padding_positions


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
