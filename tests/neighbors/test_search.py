"""One suite for every backend: the oracle's neighbours, in the layout of Edges, whatever happens between updates."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from checks import (
    TRITON,
    backends,
    batch_of,
    pairs,
    random_systems,
    require_laid_out,
    require_neighbours,
)
from interpreter import INTERPRETED

from torchmdx.neighbors.capacity import UNCOUNTABLE, CapacityError
from torchmdx.neighbors.search import EdgeSearch

ALL = backends("brute_force", "cell_list", "vesin", *TRITON, interpreter=True)
SEEDS = range(1) if INTERPRETED else range(10)
# The interpreter is slow: fewer images there.
REACH = [3.0] if INTERPRETED else [0.7, 3.0, 7.5]
CUBE = 7.0 * np.eye(3)
SKEW = np.array([[3.1, 0.1, 0.0], [0.7, 2.9, -0.2], [-0.5, 0.9, 3.3]])


def liquid(count=30, seed=0, cell=CUBE, pbc=(True, True, True)):
    return [(np.random.default_rng(seed).random((count, 3)) @ cell, cell, pbc)]


@pytest.fixture(params=ALL)
def backend(request):
    return request.param


@pytest.mark.nightly_for("triton_brute_force-0-dtype0", "triton_cell_list-0-dtype1")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", SEEDS)
def test_random_batches_have_the_neighbours_that_loops_find(backend, seed, dtype):
    systems = random_systems(seed)
    cutoff = np.random.default_rng(seed).uniform(0.5, 4.0)
    edges = EdgeSearch(cutoff, backend=backend).allocate(batch_of(systems, backend, dtype))
    require_neighbours(edges, systems, cutoff, dtype)


@pytest.mark.parametrize("pbc", [(False, False, False), (True, False, False), (True, True, False), (True, True, True)])
@pytest.mark.parametrize("cutoff", REACH)
def test_cells_below_the_cutoff_have_all_images(backend, cutoff, pbc):
    systems = [(np.array([[0.1, 0.2, 0.3], [1.5, 0.4, 2.0]]), SKEW, pbc)]
    edges = EdgeSearch(cutoff, backend=backend).allocate(batch_of(systems, backend))
    require_neighbours(edges, systems, cutoff)


@pytest.mark.nightly_for("triton_cell_list")
@pytest.mark.parametrize("cell", [np.diag([1.0, 1.0, 30.0]), np.diag([20.0, 20.0, 0.8]), SKEW @ np.diag([1, 1, 9.0])])
def test_needles_and_plates(backend, cell):
    systems = liquid(10, cell=cell)
    cutoff = 1.3 if INTERPRETED else 2.0
    edges = EdgeSearch(cutoff, backend=backend).allocate(batch_of(systems, backend))
    require_neighbours(edges, systems, cutoff)


@pytest.mark.nightly_for("triton_cell_list")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_atoms_many_cells_away_have_the_same_neighbours(backend, dtype):
    # Halves and a cell of 8 Å are exact in float32, so that moving by whole cells moves nothing else.
    random = np.random.default_rng(3)
    near = random.integers(0, 16, (12, 3)) * 0.5 + random.integers(0, 2, (12, 3)) * 0.125
    away = near + 8.0 * random.integers(-3000, 3000, (12, 3))
    systems = [(near, 8.0 * np.eye(3), (True, True, True))]
    search = EdgeSearch(3.3, backend=backend)
    close = search.allocate(batch_of(systems, backend, dtype))
    wanted = {(i, j): 0 for i, j, _ in pairs(close)}
    far = search.update(batch_of([(away, *systems[0][1:])], backend, dtype).positions)
    require_laid_out(far)
    assert {(i, j): 0 for i, j, _ in pairs(far)} == wanted
    batch = batch_of([(away, *systems[0][1:])], backend, torch.float64)
    vectors = far.vectors(batch.positions, batch.cell, batch.system_index)[: int(far.num_edges)]
    assert (torch.linalg.vector_norm(vectors, dim=1) < 3.3).all()


@pytest.mark.nightly_for("triton_cell_list")
def test_numbering_atoms_otherwise_changes_nothing_else(backend):
    systems = liquid(20, seed=4)
    order = np.random.default_rng(0).permutation(20)
    edges = EdgeSearch(3.0, backend=backend).allocate(batch_of(systems, backend))
    shuffled = [(systems[0][0][order], *systems[0][1:])]
    other = EdgeSearch(3.0, backend=backend).allocate(batch_of(shuffled, backend))
    assert sorted((order[i], order[j], shift) for i, j, shift in pairs(other)) == sorted(pairs(edges))


@pytest.mark.nightly_for("triton_brute_force", "triton_cell_list")
def test_two_updates_of_one_structure_are_equal_to_the_bit(backend):
    batch = batch_of(liquid(40), backend)
    search = EdgeSearch(3.0, backend=backend)
    first = [x.clone() for x in vars(search.allocate(batch)).values()]
    search.update(batch.positions + 0.3)
    again = vars(search.update(batch.positions)).values()
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


@pytest.mark.nightly_for("triton_brute_force", "triton_cell_list")
def test_updates_keep_the_buffers_and_follow_positions_and_cell(backend):
    systems = liquid(20, pbc=(True, False, True))
    search = EdgeSearch(3.0, backend=backend)
    kept = search.allocate(batch_of(systems, backend), capacity=2000)
    for scale in (1.05, 0.9, 0.6):
        moved = [(scale * systems[0][0], scale * CUBE + np.array([[0, 0.3, 0]] * 3), systems[0][2])]
        batch = batch_of(moved, backend)
        edges = search.update(batch.positions, batch.cell)
        assert edges.source.data_ptr() == kept.source.data_ptr()
        assert edges.capacity == 2000
        require_neighbours(edges, moved, 3.0)


@pytest.mark.nightly_for("triton_brute_force", "triton_cell_list")
def test_the_recovery_loop_of_the_docstring_loses_no_edge(backend):
    atoms, scale = (10, 2) if INTERPRETED else (25, 3)
    wide, dense = liquid(atoms, cell=scale * CUBE), liquid(atoms, cell=0.6 * CUBE)
    search = EdgeSearch(3.0, backend=backend)
    search.allocate(batch_of(wide, backend))
    batch = batch_of(dense, backend)
    edges = search.update(batch.positions, batch.cell)
    grown = 0
    assert edges.overflow
    assert int(edges.needed) > search.capacity
    assert int(edges.num_edges) == search.capacity == int(edges.row_ptr[-1])
    while edges.overflow:
        search.grow()
        grown += 1
        edges = search.update(batch.positions, batch.cell)
    assert grown == 1
    require_neighbours(edges, dense, 3.0)


@pytest.mark.nightly_for("triton_brute_force", "triton_cell_list")
def test_the_reverse_of_every_edge(backend):
    search = EdgeSearch(4.0, backend=backend, reverse=True)
    edges = search.allocate(batch_of([(SKEW[:2] * 0.4, SKEW, (True, True, True)), *liquid(8)], backend))
    found, reverse = pairs(edges), search.reverse.tolist()
    for slot, (i, j, shift) in enumerate(found):
        assert found[reverse[slot]] == (j, i, tuple(-n for n in shift))
    assert reverse[len(found) :] == list(range(len(found), edges.capacity))


@pytest.mark.parametrize("atoms", [0, 1])
def test_no_atoms_and_one_atom(backend, atoms):
    systems = [(np.zeros((atoms, 3)), 20 * np.eye(3), (True, True, True))]
    search = EdgeSearch(5.0, backend=backend)
    edges = search.allocate(batch_of(systems, backend))
    assert (int(edges.num_edges), bool(edges.overflow), edges.num_atoms) == (0, False, atoms)
    assert edges.row_ptr.tolist() == [0] * (atoms + 1)


@pytest.mark.nightly_for("triton_cell_list", "triton_brute_force")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_atoms_that_are_nowhere_are_flagged_and_alone(backend, value):
    systems = liquid(10)
    search = EdgeSearch(4.0, backend=backend)
    batch = batch_of(systems, backend)
    search.allocate(batch)
    assert not search.invalid
    broken = batch.positions.clone()
    broken[3, 1] = value
    edges = search.update(broken)
    assert search.invalid
    assert 3 not in {atom for i, j, _ in pairs(edges) for atom in (i, j)}
    require_laid_out(edges)
    edges = search.update(batch.positions)
    assert not search.invalid
    require_neighbours(edges, systems, 4.0)


@pytest.mark.nightly_for("triton_cell_list-flat", "triton_cell_list-tiny", "triton_brute_force")
@pytest.mark.parametrize("kind", ["flat", "nan", "tiny"])
def test_cells_that_collapse_are_told_and_not_walked(backend, kind):
    batch = batch_of(liquid(5), backend)
    search = EdgeSearch(4.0, backend=backend)
    search.allocate(batch)
    cell = batch.cell.clone()
    if kind == "flat":
        cell[0, 2] = cell[0, 1]
    else:
        cell *= {"nan": float("nan"), "tiny": 1e-4}[kind]
    edges = search.update(batch.positions, cell)
    assert edges.overflow
    assert int(edges.needed) == UNCOUNTABLE
    told = {
        "flat": "the lattice vectors of the periodic directions must be linearly independent",
        "nan": "cell must be finite",
        "tiny": "a search radius must span less than 500 cells along each periodic direction",
    }
    with pytest.raises(CapacityError, match=f"the neighbour list can't be counted: {told[kind]}"):
        search.grow()
    assert not search.update(batch.positions, batch.cell).overflow


class TestSkin:
    @pytest.mark.nightly_for("triton_cell_list", "triton_brute_force")
    def test_nothing_is_searched_until_an_atom_has_moved_half_the_skin(self, backend):
        systems = liquid(15)
        batch = batch_of(systems, backend)
        search = EdgeSearch(3.0, skin=1.0, backend=backend)
        search.allocate(batch)
        before = search.num_updates()
        x = batch.positions.clone()
        x[4, 0] += 0.49
        search.update(x)
        assert search.num_updates() == before
        x[4, 0] += 0.02
        edges = search.update(x)
        assert search.num_updates() == before + 1
        require_neighbours(edges, [(x.cpu().numpy(), *systems[0][1:])], 4.0)
        search.update(x)
        assert search.num_updates() == before + 1

    @pytest.mark.nightly_for("triton_brute_force", "triton_cell_list")
    def test_every_pair_within_the_cutoff_is_there_while_a_barostat_works(self, backend):
        systems = liquid(12, cell=SKEW * 2)
        batch = batch_of(systems, backend)
        search, fresh = EdgeSearch(3.0, skin=0.8, backend=backend), EdgeSearch(3.0, backend=backend)
        search.allocate(batch, 4000)
        fresh.allocate(batch, 4000)
        random = np.random.default_rng(1)
        before, x, cell = search.num_updates(), batch.positions.clone(), batch.cell.clone()
        steps = 6 if INTERPRETED else 25
        for _ in range(steps):
            strain = torch.as_tensor(np.eye(3) + random.normal(0, 0.004, (3, 3))).to(x)
            x = x @ strain + torch.as_tensor(random.normal(0, 0.02, x.shape)).to(x)
            cell = cell @ strain
            inside = set(pairs(fresh.update(x, cell)))
            assert inside <= set(pairs(search.update(x, cell)))
        assert search.num_updates() - before < steps

    @pytest.mark.nightly_for("triton_cell_list", "triton_brute_force")
    def test_a_cell_that_shrinks_alone_is_noticed(self, backend):
        batch = batch_of(liquid(10), backend)
        search = EdgeSearch(3.0, skin=0.5, backend=backend)
        search.allocate(batch, 4000)
        before = search.num_updates()
        search.update(batch.positions, batch.cell * 0.7)
        assert search.num_updates() == before + 1

    @pytest.mark.nightly_for("triton_brute_force")
    def test_a_list_that_overflowed_is_searched_again(self, backend):
        systems = liquid(10)
        batch = batch_of(systems, backend)
        search = EdgeSearch(3.0, skin=0.5, backend=backend)
        assert search.allocate(batch, capacity=3).overflow
        assert search.update(batch.positions).overflow
        search.grow()
        require_neighbours(search.update(batch.positions), systems, 3.5)


def test_what_was_allocated_for_is_required(backend):
    batch = batch_of(liquid(4), backend)
    search = EdgeSearch(3.0, backend=backend)
    with pytest.raises(RuntimeError, match="allocate must be called before update and grow"):
        search.update(batch.positions)
    search.allocate(batch)
    with pytest.raises(ValueError, match=re.escape("positions must be [4, 3] torch.float64")):
        search.update(batch.positions[:3])
    with pytest.raises(ValueError, match=re.escape("cell must be [1, 3, 3] torch.float64")):
        search.update(batch.positions, batch.cell.float())


@pytest.mark.parametrize("capacity", [0, -1, 2**31])
def test_capacities_that_cannot_be_are_refused(backend, capacity):
    with pytest.raises(ValueError, match=f"capacity must be from 1 to 2147483647 edges, got {capacity}"):
        EdgeSearch(3.0, backend=backend).allocate(batch_of(liquid(4), backend), capacity)


def test_cells_without_volume_are_refused(backend):
    batch = batch_of(liquid(4), backend)
    flat = batch.cell.clone()
    flat[0, 2] = flat[0, 1]
    with pytest.raises(ValueError, match="must be linearly independent"):
        EdgeSearch(3.0, backend=backend).allocate(replace(batch, cell=flat))


def test_lists_beyond_int32_are_refused(backend):
    search = EdgeSearch(3.0, backend=backend)
    edges = search.allocate(batch_of(liquid(4), backend))
    edges.needed.fill_(2**31)
    with pytest.raises(CapacityError, match="needs 2147483648 edges, but at most 2147483647"):
        search.grow()


def broken(*_, **__):
    raise MemoryError


def test_an_allocation_or_growth_that_fails_leaves_the_search_as_it_was(monkeypatch):
    few, many = (batch_of(liquid(count), "brute_force") for count in (12, 30))
    search = EdgeSearch(3.0, backend="brute_force", reverse=True)
    wanted = pairs(search.allocate(few, 400))
    held = search.edges, search.reverse
    for work in (lambda: search.allocate(many), search.grow):
        with monkeypatch.context() as patch:
            patch.setattr("torchmdx.neighbors.search.make_search", broken)
            with pytest.raises(MemoryError):
                work()
        assert (search.edges, search.reverse) == held
        assert pairs(search.update(few.positions, few.cell)) == wanted


def test_an_assignment_that_fails_is_made_again_or_refused(monkeypatch):
    first, second = (batch_of(liquid(12, seed), "brute_force") for seed in (0, 1))
    search = EdgeSearch(3.0, backend="brute_force")
    search.allocate(first, 400)
    with monkeypatch.context() as patch:
        patch.setattr(search._search, "assign", broken)
        with pytest.raises(MemoryError):
            search.assign(second)
    for work in (lambda: search.update(second.positions), search.grow):
        with pytest.raises(RuntimeError, match="the last assign did not finish: call assign or allocate before"):
            work()
    assert not search.assign(second)  # in buffers that are new
    assert pairs(search.update(second.positions)) == pairs(EdgeSearch(3.0, backend="brute_force").allocate(second))


@pytest.mark.nightly_for("triton_cell_list", "triton_brute_force")
def test_a_renewed_search_has_new_buffers_and_goes_on_counting(backend):
    batch = batch_of(liquid(12), backend)
    search = EdgeSearch(3.0, skin=0.5, backend=backend)
    old = search.allocate(batch, 400)
    wanted, count = pairs(old), search.num_updates()
    search.renew()
    assert search.edges is not old
    assert pairs(search.update(batch.positions, batch.cell)) == wanted
    assert (search.capacity, search.num_updates()) == (400, count + 1)
