"""The search among explicit images gives the edges of the reference."""

import numpy as np
import pytest
import torch
from ase.build import bulk

from torchmdx import Batch, System
from torchmdx.neighbors import explicit
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.neighbors.explicit import copies, pairs, search_explicitly


def rows(edges):
    columns = (edges.target[:, None], edges.source[:, None], edges.shifts)
    return sorted(map(tuple, torch.cat(columns, 1).tolist()))


@pytest.mark.parametrize("cutoff", [1.2, 4.0, 9.0])
def test_edges_are_those_of_the_reference(structure, ethanol, cutoff):
    structure.positions += [0, 30, -7]
    batch = Batch.of([System.from_ase(ethanol), System.create([], []), System.from_ase(structure)])
    found, wanted = search_explicitly(batch, cutoff), brute_force(batch, cutoff)
    assert torch.equal(found.row_ptr, wanted.row_ptr)
    assert torch.equal(found.target, wanted.target)
    assert rows(found) == rows(wanted)


def test_many_atoms_are_searched_in_pieces(monkeypatch):
    atoms = bulk("NaCl", "rocksalt", 5.6, cubic=True) * (3, 3, 2)
    atoms.rattle(0.3, seed=1)
    batch = Batch.of(System.from_ase(atoms))
    wanted = rows(brute_force(batch, 5.0))
    monkeypatch.setattr(explicit, "CHUNK", 100)
    assert rows(search_explicitly(batch, 5.0)) == wanted


def test_there_are_no_edges_without_atoms_and_between_atoms_far_apart():
    assert search_explicitly(Batch.of(System.create([], [])), 4.0).capacity == 0
    far = System.create(1e5 * np.arange(9.0).reshape(3, 3), [1, 1, 1])
    assert search_explicitly(Batch.of(far), 4.0).row_ptr.tolist() == [0, 0, 0, 0]


def test_pairs_have_their_targets_among_the_first_points():
    points = torch.tensor([[0.0, 0, 0], [1, 0, 0], [2, 0, 0], [0, 0.5, 0]], dtype=torch.float64)
    target, source = pairs(points, 2, 1.1)
    assert list(zip(target.tolist(), source.tolist(), strict=True)) == [(0, 1), (0, 3), (1, 0), (1, 2)]


def test_copies_reach_from_the_lower_to_the_upper_limit():
    places = torch.tensor([[0.1, 0.9, 0.5]], dtype=torch.float64)
    low, high = torch.tensor([-1.0, 0.0, 0.0]).double(), torch.tensor([1.2, 2.0, 0.1]).double()
    atoms, shifts = copies(places, torch.tensor([True, True, False]), low, high)
    assert not atoms.any()
    assert shifts.tolist() == [[x, y, 0.0] for y in (0.0, 1.0) for x in (-1.0, 0.0, 1.0)]
