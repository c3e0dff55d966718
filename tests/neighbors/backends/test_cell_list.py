"""The cell list in C: what it finds itself, and what it leaves to another search."""

import numpy as np
import pytest
import torch
from checks import batch_of, random_systems, require_neighbours

from torchmdx.neighbors import capacity
from torchmdx.neighbors.backends import cell_list
from torchmdx.neighbors.backends.cell_list import CellList
from torchmdx.neighbors.edges import empty_edges
from torchmdx.neighbors.search import EdgeSearch

pytestmark = pytest.mark.skipif(not cell_list.available(), reason="needs a C compiler")
EYE = np.eye(3)
OPEN, PERIODIC = (False,) * 3, (True,) * 3


def filled(systems, radius, capacity=20_000, dtype=torch.float64):
    """(whether it served, its list)"""
    batch = batch_of(systems, "cell_list", dtype)
    edges = empty_edges(batch, capacity)
    return CellList(batch, radius, edges).fill(batch.positions, batch.cell), edges


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_any_cells_in_one_batch(dtype):
    for seed in range(40):
        systems = [*random_systems(seed), (np.zeros((0, 3)), np.zeros((3, 3)), OPEN)]
        if not sum(len(x) for x, _, _ in systems):
            continue
        served, edges = filled(systems, 2.0, dtype=dtype)
        assert served
        require_neighbours(edges, systems, 2.0, dtype)


def test_a_cell_much_smaller_than_the_radius():
    atoms = np.array([[0.0, 0, 0], [0.31, 0.31, 0.31]])
    for pbc in ((True,) * 3, (True, False, False), (True, True, False)):
        systems = [(atoms, 0.6 * EYE, pbc)]
        served, edges = filled(systems, 3.0)
        assert served
        require_neighbours(edges, systems, 3.0)


@pytest.mark.nightly
def test_a_large_box_with_many_bins():
    random = np.random.default_rng(3)
    systems = [(random.uniform(-5, 40, (600, 3)), np.diag([31.0, 33.0, 29.0]) + 2.0, PERIODIC)]
    served, edges = filled(systems, 4.0)
    assert served
    require_neighbours(edges, systems, 4.0)


@pytest.mark.parametrize(
    ("positions", "cell"),
    [
        ([[0, 0, np.nan], [1, 0, 0]], 9 * EYE),
        ([[0, 0, np.inf], [1, 0, 0]], 9 * EYE),
        ([[0, 0, 0], [1, 0, 0]], np.diag([9.0, 9.0, 0.0])),
        ([[0, 0, 0], [1, 0, 0]], np.array([[1.0, 0, 0], [2, 0, 0], [0, 0, 1]])),
        ([[0, 0, 0], [1, 0, 0]], 0.1 * EYE),
        ([[0, 0, 0], [1, 0, 0]], np.full((3, 3), np.nan)),
    ],
    ids=["NaN", "infinity", "no third vector", "parallel vectors", "too small", "NaN cell"],
)
def test_what_it_leaves_to_another_search(positions, cell):
    good = batch_of([(np.asarray([[0.0, 0, 0], [1, 0, 0]]), 9 * EYE, PERIODIC)], "cell_list")
    search = CellList(good, 2.0, empty_edges(good, 100))
    assert search.fill(good.positions, good.cell)
    bad = torch.tensor(np.asarray(positions, dtype=float)), torch.tensor(np.asarray(cell, dtype=float))[None]
    assert not search.fill(bad[0], bad[1])


def test_more_edges_than_memory_holds_are_left_to_another_search(monkeypatch):
    batch = batch_of([(np.random.default_rng(0).normal(size=(50, 3)), EYE, OPEN)], "cell_list")
    search = CellList(batch, 5.0, empty_edges(batch, 100))
    assert search.fill(batch.positions, batch.cell)
    monkeypatch.setattr(capacity, "memory_for_edges", lambda: 1000)
    assert not search.fill(batch.positions, batch.cell)


def test_a_list_that_is_too_long_overflows_and_says_what_it_needs():
    random = np.random.default_rng(1)
    systems = [(random.uniform(0, 6, (40, 3)), 6 * EYE, PERIODIC)]
    _, whole = filled(systems, 3.0)
    served, edges = filled(systems, 3.0, capacity=100)
    assert served
    assert bool(edges.overflow)
    assert int(edges.needed) == int(whole.num_edges)
    assert (int(edges.num_edges), int(edges.row_ptr[-1])) == (100, 100)


def test_without_its_library_it_is_refused(monkeypatch):
    monkeypatch.setattr(cell_list, "available", lambda: False)
    batch = batch_of([(np.zeros((1, 3)), EYE, PERIODIC)], "cell_list")
    with pytest.raises(ImportError, match="backend 'cell_list' needs a compiled library"):
        EdgeSearch(3.0, backend="cell_list").allocate(batch)


@pytest.mark.parametrize("instructions", [0, 1, 2])
def test_every_instruction_set_finds_the_same(instructions, monkeypatch):
    """Also in bins of more atoms than are compared at once."""
    random = np.random.default_rng(5)
    crowd = (random.uniform(0, 3, (360, 3)), 9 * EYE, OPEN)
    box = (random.uniform(0, 11, (300, 3)), 11 * EYE + 0.4, PERIODIC)
    expected = filled([crowd, box], 2.5, capacity=200_000)[1]
    monkeypatch.setattr(cell_list, "MOST_INSTRUCTIONS", instructions)
    served, edges = filled([crowd, box], 2.5, capacity=200_000)
    assert served
    if instructions == 0:
        require_neighbours(edges, [crowd, box], 2.5, torch.float64)
    for name in ("row_ptr", "source", "target", "shifts", "num_edges"):
        assert torch.equal(getattr(edges, name), getattr(expected, name)), name
