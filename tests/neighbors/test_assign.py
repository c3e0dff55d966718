"""Other atoms in a search's buffers, by numbers that the host knows."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from torchmdx import Batch, System
from torchmdx.neighbors.edges import empty_edges
from torchmdx.neighbors.search import EdgeSearch

CUTOFF = 3.0


def batch(sizes, seed=0) -> Batch:
    rng = np.random.default_rng(seed)
    return Batch.from_systems([System.create(rng.normal(size=(n, 3)) * 2, [1] * n) for n in sizes])


@pytest.mark.parametrize("counts", [None, [2, 0, 7, 3]])
def test_the_list_is_that_of_the_new_systems(counts):
    search = EdgeSearch(CUTOFF)
    search.allocate(batch([4, 5, 2, 1]), 200)
    other = batch([2, 0, 7, 3], seed=1)
    assert search.assign(other, counts)
    edges = search.update(other.positions)
    expected = EdgeSearch(CUTOFF).allocate(other, 200)
    assert int(edges.num_edges) > 0
    for name in ("row_ptr", "source", "target", "num_edges"):
        assert torch.equal(getattr(edges, name), getattr(expected, name))


@pytest.mark.parametrize(
    ("counts", "said"),
    [([2, 7, 3], "counts must be of 4 systems with 12 atoms in all, got 3 with 12"), ([2, 1, 7, 3], "got 4 with 13")],
)
def test_counts_of_other_systems_are_refused(counts, said):
    search = EdgeSearch(CUTOFF)
    search.allocate(batch([4, 5, 2, 1]), 200)
    with pytest.raises(ValueError, match=said):
        search.assign(batch([2, 0, 7, 3]), counts)


def test_with_counts_nothing_is_read_from_the_device():
    pytest.importorskip("triton")
    from torchmdx.neighbors.single_pass import OnePassBruteForce

    first, other = batch([4, 5, 2, 1]), batch([2, 0, 7, 3], seed=1)
    search = EdgeSearch(CUTOFF)
    search.allocate(first, 200)
    made = [OnePassBruteForce(first, CUTOFF, 0.0, empty_edges(first, 200)) for _ in range(2)]
    assert made[0].assign(other)
    search._search = made[1]
    # A tensor on "meta" has no values: whoever asks for one gets an error.
    unreadable = replace(other, system_index=other.system_index.to("meta"), cell=other.cell.to("meta"))
    with pytest.raises((RuntimeError, NotImplementedError)):
        search.assign(unreadable)
    assert search.assign(unreadable, [2, 0, 7, 3])
    assert torch.equal(made[0].tiles, made[1].tiles)
    assert made[0].counts == made[1].counts == [2, 0, 7, 3]


def test_tiles_are_those_of_the_sizes_in_turn():
    """Tables of recurring sizes are kept, and must not change with the tiles of a search."""
    pytest.importorskip("triton")
    from torchmdx.neighbors.single_pass import OnePassBruteForce

    def tiles(search):
        return search.tiles.tolist()

    def fresh(sizes):
        given = batch(sizes)
        return OnePassBruteForce(given, CUTOFF, 0.0, empty_edges(given, 200))

    search = fresh([5, 7])
    wanted = {sizes: tiles(fresh(sizes)) for sizes in ((5, 7), (3, 9), (12, 0))}
    for sizes in ((3, 9), (3, 9), (5, 7), (12, 0), (5, 7)):
        assert search.assign(batch(sizes), list(sizes))
        assert tiles(search) == wanted[sizes] == tiles(fresh(sizes))


def pairs(edges) -> list[tuple[int, int]]:
    count = int(edges.num_edges)
    return sorted(zip(edges.target[:count].tolist(), edges.source[:count].tolist(), strict=True))


@pytest.mark.interpreter
def test_lists_of_the_gpu_search_after_assignments():
    search = EdgeSearch(CUTOFF, backend="triton_brute_force")
    search.allocate(batch([5, 7]), 200)
    for seed, sizes in enumerate([(5, 7), (3, 9), (3, 9), (5, 7), (12, 0)]):
        other = batch(sizes, seed)
        assert search.assign(other, list(sizes))
        edges, expected = search.update(other.positions), EdgeSearch(CUTOFF).allocate(other, 200)
        assert int(edges.num_edges) == int(expected.num_edges) > 0
        assert pairs(edges) == pairs(expected), sizes
