"""Cells that have collapsed: refused everywhere, by one rule, in bounded time and memory."""

import re
import time

import numpy as np
import pytest
import torch

from torchmdx import Batch, CapturedStep, EdgeSearch, System, evaluate
from torchmdx.neighbors import capacity as capacity_module
from torchmdx.neighbors import images
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.neighbors.capacity import BYTES_AN_EDGE, CapacityError, memory_for_edges
from torchmdx.neighbors.grid import choose_grid
from torchmdx.neighbors.images import countable, require_countable, too_many

BULK, SLAB, WIRE = (True, True, True), (True, True, False), (False, False, True)
SKEW = np.array([[1.0, 0.0, 0.0], [0.999, 0.05, 0.0], [0.2, 0.1, 1.0]])
LIMIT = "a search radius must span less than 500 cells along each periodic direction, with less than 1048576 images"
SMALL = 1 << 16  # edges


def cells(*given):
    return torch.tensor(np.array(given), dtype=torch.float64)


def flags(*given):
    return torch.tensor(given)


@pytest.mark.parametrize(
    ("cell", "pbc", "good"),
    [
        (np.eye(3), BULK, True),
        (np.eye(3) * 0.10, BULK, True),  # (2 * 45 + 3)^3 images
        (np.eye(3) * 0.09, BULK, False),  # 103^3
        (np.eye(3) * 0.02, BULK, False),
        (np.diag([0.02, 0.02, 20.0]), SLAB, True),  # 453^2
        (np.diag([0.008, 0.008, 20.0]), SLAB, False),  # 1128^2
        (np.diag([30.0, 30.0, 0.0091]), WIRE, True),  # 494 cells
        (np.diag([30.0, 30.0, 0.0089]), WIRE, False),  # 506 cells
        (np.diag([1e-9, 1e-9, 3.0]), WIRE, True),  # what is not periodic does not count
        (SKEW * 0.8, BULK, True),
        (SKEW * 0.02, BULK, False),  # heights, not lengths: a tenth of 0.02 Å
        (np.eye(3) * 1e-9, BULK, False),
        (np.full((3, 3), np.nan), BULK, False),
        (np.zeros((3, 3)), BULK, False),
        (np.zeros((3, 3)), (False, False, False), True),
    ],
)
def test_only_images_along_periodic_directions_count(cell, pbc, good):
    assert bool(countable(cells(cell), flags(pbc), 4.5)[0]) is good
    if good:
        require_countable(cells(cell), flags(pbc), 4.5)
    else:
        with pytest.raises(CapacityError, match="the neighbour list can't be counted: "):
            require_countable(cells(cell), flags(pbc), 4.5)


def test_the_error_states_the_limit_the_value_and_the_system():
    with pytest.raises(CapacityError, match=LIMIT) as caught:
        require_countable(cells(np.eye(3), np.diag([1.0, 0.005, 1.0])), flags(BULK, BULK), 4.5)
    assert "got 4.5 x 900 x 4.5 cells with about 2.6e+05 images for a radius of 4.5 Å" in str(caught.value)
    assert str(caught.value).endswith("(system 1)")


def collapsed(length, pbc=BULK, count=3):
    cell = np.where(np.array(pbc)[:, None], np.eye(3) * length, np.eye(3) * 6.0)
    points = np.random.default_rng(0).random((count, 3)) @ cell
    return Batch.from_systems([System.create(points, [6] * count, cell, pbc)])


@pytest.mark.parametrize("length", [0.02, 1e-6, 1e-9])
@pytest.mark.parametrize("pbc", [BULK, SLAB])
def test_every_way_in_refuses_at_once(potential, length, pbc):
    length = length / 10 if pbc == SLAB else length
    batch, wide = collapsed(length, pbc), collapsed(6.0, pbc)
    start = time.perf_counter()
    for backend in ("vesin", "cell_list", "brute_force"):
        with pytest.raises(CapacityError, match=LIMIT):
            EdgeSearch(4.5, backend=backend).allocate(batch)
        search = EdgeSearch(4.5, backend=backend)
        search.allocate(wide)
        with pytest.raises(CapacityError, match=LIMIT):
            search.assign(batch)
        assert search.batch is wide
        assert search.assign(batch, counts=[3])  # as training does, which reads the flags later
        assert search.update(batch.positions, batch.cell).overflow
        with pytest.raises(CapacityError, match=LIMIT):
            search.grow()
    for refused in (lambda: brute_force(batch, 4.5), lambda: evaluate(potential, batch)):
        with pytest.raises(CapacityError, match=LIMIT):
            refused()
    assert time.perf_counter() - start < 30  # walking the images takes minutes at least


@pytest.mark.parametrize("scale", [0.0, 1e-9, 1e-3, np.nan])
def test_a_step_goes_on_after_a_collapsed_cell(potential, scale):
    batch = collapsed(6.0)
    step = CapturedStep(potential, batch)
    positions, cell = batch.positions.numpy(), batch.cell[0].numpy()
    before = step(positions, cell)
    told = {0.0: "a periodic direction needs a lattice vector", 1e-9: LIMIT, 1e-3: LIMIT}.get(scale, "must be finite")
    with pytest.raises(CapacityError, match=told):
        step(positions, cell * scale)
    assert step.num_recoveries == 0
    after = step(positions, cell)
    assert after.energy[0] == before.energy[0]
    assert np.array_equal(after.forces, before.forces)


def test_a_step_does_not_take_a_collapsed_structure(potential):
    batch = collapsed(6.0)
    step = CapturedStep(potential, batch)
    before = step(batch.positions.numpy()).energy[0]
    with pytest.raises(CapacityError, match=LIMIT):
        step.assign(collapsed(1e-6))
    assert step(batch.positions.numpy(), batch.cell.numpy()).energy[0] == before


def test_singular_cells_of_a_batch_are_refused_by_name(potential):
    batch = collapsed(6.0)
    batch.cell[0, 2] = batch.cell[0, 1]
    with pytest.raises(CapacityError, match="must be linearly independent"):
        evaluate(potential, batch)
    with pytest.raises(CapacityError, match="must be linearly independent"):
        brute_force(batch, 4.0)


@pytest.mark.parametrize("scale", [0.0, np.nan, 1e-9])
def test_bins_are_chosen_for_cells_that_will_be_refused(scale):
    batch = collapsed(6.0)
    batch.cell.mul_(scale)
    assert choose_grid(batch, 4.0).num_bins >= 1


# -- memory --------------------------------------------------------------------------------------------------------


@pytest.fixture
def little_memory(monkeypatch):
    monkeypatch.setattr(images, "memory_for_edges", lambda: SMALL)
    monkeypatch.setattr(capacity_module, "memory_for_edges", lambda: SMALL)


@pytest.mark.nightly_for("pbc1")
@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("pbc", [BULK, SLAB, WIRE, (False, False, False)])
def test_lists_beyond_the_memory_are_estimated_and_not_made(pbc, monkeypatch):
    length = 0.7 if any(pbc) else 6.0
    count = 30 if pbc == BULK else 400
    batch = collapsed(length, pbc, count)
    expected = too_many(batch, 4.5)
    assert expected > SMALL
    search = EdgeSearch(4.5)
    search.allocate(collapsed(60.0, pbc, count), 1000)
    monkeypatch.setattr(search._search, "pairs", lambda *_: pytest.fail("searched"))
    edges = search.update(batch.positions, batch.cell)
    assert edges.overflow
    assert int(edges.needed) == expected
    told = f"the neighbour list needs about {expected} edges, but memory holds at most {SMALL}"
    for refused in (search.grow, lambda: EdgeSearch(4.5).allocate(batch), lambda: brute_force(batch, 4.5)):
        with pytest.raises(CapacityError, match=re.escape(told)):
            refused()
    monkeypatch.undo()
    assert 0.4 < expected / brute_force(batch, 4.5).capacity < 1.2


@pytest.mark.usefixtures("little_memory")
def test_large_and_thin_structures_fit(crystal):
    assert too_many(Batch.from_systems([System.from_ase(crystal * 4)]), 4.0) is None
    apart = torch.arange(3000.0, dtype=torch.float64)[:, None] * torch.tensor([3.0, 0, 0])
    assert too_many(Batch.from_systems([System.create(apart, [1] * 3000)]), 4.0) is None


def test_memory_is_that_of_the_machine_or_the_limit_of_the_process(monkeypatch):
    assert memory_for_edges() > 1 << 20
    monkeypatch.setattr(capacity_module.resource, "getrlimit", lambda which: (1 << 30, 1 << 30))
    assert memory_for_edges() == (1 << 30) // BYTES_AN_EDGE
