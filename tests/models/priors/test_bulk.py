"""Ewald sums of many crystals in buffers of fixed shapes, against the sums of one system after another."""

import numpy as np
import pytest
import torch

from torchmdx.models.priors import bulk, reciprocal
from torchmdx.models.priors.bulk import BulkSums, Crystals, takes_vectors
from torchmdx.models.priors.ewald import KVectors
from torchmdx.models.priors.splitting import Splitting
from torchmdx.structures.system import Batch, System

SPLITTING = Splitting.of(1e-6, 5.0)
WEIGHTS = torch.tensor([0.3, 0.5, 0.2], dtype=torch.float64)


def systems(seed, counts=(5, 3, 8), open_at=1):
    """Random triclinic crystals, one of which is a molecule."""
    rng = np.random.default_rng(seed)
    found = []
    for k, count in enumerate(counts):
        cell = np.diag(rng.uniform(5, 9, 3)) + rng.uniform(-1, 1, (3, 3))
        positions, periodic = rng.uniform(0, 1, (count, 3)) @ cell, k != open_at
        found.append(System.create(positions, [11] * count, cell if periodic else None, periodic, dtype=torch.float64))
    return found


def given(seed, **options):
    batch = Batch.from_systems(systems(seed, **options))
    charges = torch.from_numpy(np.random.default_rng(seed).normal(size=(batch.num_atoms, 3)))
    crystals = Crystals(batch.cell.numpy(), batch.pbc.numpy(), batch.counts().numpy())
    return batch, charges, crystals


def empty(batch, room=(0, 0), extra=0):
    return BulkSums.empty(SPLITTING, batch.num_systems + extra, batch.num_atoms, torch.device("cpu"), room)


def derivatives(energies, x, cell, charges):
    """Energies, gradients, and the change of the gradients along a direction."""
    inputs = [t.clone().requires_grad_(True) for t in (x, cell, charges)]
    found = energies(*inputs)
    first = torch.autograd.grad((found * torch.linspace(1, 2, len(found)).double()).sum(), inputs, create_graph=True)
    second = torch.autograd.grad(sum((g * torch.sin(g.detach() + 1)).sum() for g in first), inputs)
    return [found, *first, *second]


@pytest.mark.parametrize("room", [(0, 0), (2048, 32)])
@pytest.mark.parametrize("most", [None, 3000])
def test_energies_and_two_derivatives_are_those_of_one_system_after_another(monkeypatch, room, most):
    if most is not None:  # in several parts, which are evaluated again
        monkeypatch.setattr(reciprocal, "MOST_PHASES", most)
    batch, charges, crystals = given(0)
    sums = empty(batch, room)
    sums.load(crystals)
    vectors = KVectors.of(batch, SPLITTING, charges)
    wanted = derivatives(
        lambda x, cell, q: reciprocal.reciprocal_energies(vectors, batch, x, cell, q, WEIGHTS),
        batch.positions, batch.cell, charges,
    )  # fmt: skip
    found = derivatives(lambda x, cell, q: sums.energies(x, cell, q, WEIGHTS), batch.positions, batch.cell, charges)
    assert wanted[0].abs().min() == 0  # the molecule
    assert wanted[0].abs().max() > 0.1
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_buffers_stay_while_batches_of_the_same_shape_change():
    batches = [given(1, counts=(8, 3, 5)), given(2, counts=(4, 4, 8), open_at=None)]
    sums = empty(batches[0][0], room=(1024, 8))
    buffers = [tensor.data_ptr() for tensor in (sums.indices, sums.atoms, sums.filled, sums.places)]
    for batch, charges, crystals in (*batches, batches[0]):
        assert sums.load(crystals)
        vectors = KVectors.of(batch, SPLITTING, charges)
        wanted = reciprocal.reciprocal_energies(vectors, batch, batch.positions, batch.cell, charges, WEIGHTS)
        found = sums.energies(batch.positions, batch.cell, charges, WEIGHTS)
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-12)
    assert buffers == [tensor.data_ptr() for tensor in (sums.indices, sums.atoms, sums.filled, sums.places)]


def test_larger_cells_and_systems_get_larger_buffers():
    batch, _, crystals = given(3)
    sums = empty(batch)
    assert not sums.load(crystals)
    slots, rows = sums.room
    assert slots % bulk.SLOTS == 0
    assert rows % bulk.ROWS == 0
    assert not sums.load(Crystals(1.5 * crystals.cells, crystals.pbc, crystals.counts))
    assert sums.room[0] > slots
    assert sums.room[1] == rows


def test_systems_that_are_no_crystals_are_known():
    cells = np.stack([6 * np.eye(3)] * 3)
    pbc, counts = np.array([[True] * 3, [False] * 3, [True] * 3]), np.array([4, 4, 4])
    assert Crystals(cells, pbc, counts).are_bulk()
    assert not Crystals(cells, pbc & np.array([True, True, False]), counts).are_bulk()
    assert not Crystals(0 * cells, pbc, counts).are_bulk()
    assert Crystals.none().are_bulk()


def test_large_crystals_are_summed_on_a_mesh_as_without_buffers():
    pbc, counts = np.ones((1, 3), bool), np.array([4000])
    small, large = (Crystals(side * np.eye(3)[None], pbc, counts) for side in (8.0, 40.0))
    assert takes_vectors(small, SPLITTING, "auto", 10)
    assert not takes_vectors(large, SPLITTING, "auto", 4000)
    assert takes_vectors(large, SPLITTING, "ewald", 4000)
    assert not takes_vectors(small, SPLITTING, "pme", 10)
    assert takes_vectors(Crystals.none(), SPLITTING, "pme", 10)
