"""Pools of batches against `evaluate`: compositions that change, sizes that are shared, errors between."""

import copy
import gc
import weakref

import numpy as np
import pytest
import torch
from ase.build import molecule

from torchmdx import Batch, System, evaluate
from torchmdx.step import batch_pool
from torchmdx.step.batch_pool import BatchPool
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.results import NonFiniteError, OutOfDeviceMemory

NAMES = ("CH3CH2OH", "H2O", "CH4", "C6H6", "CH3COOH", "NH3", "C2H4")


def batch_of(numbers, seed: int = 0, crystal=None) -> Batch:
    systems = []
    for k in numbers:
        atoms = molecule(NAMES[k % len(NAMES)])
        atoms.rattle(0.05, seed=seed + k)
        systems.append(System.from_ase(atoms))
    if crystal is not None:
        systems.insert(len(systems) // 2, System.from_ase(crystal))
    return Batch.from_systems(systems)


def require_equal(pool: BatchPool, batch: Batch, positions: torch.Tensor | None = None) -> None:
    batch = batch if positions is None else Batch(**{**vars(batch), "positions": positions})
    found = pool(batch.positions, batch.cell)
    wanted = evaluate(pool.potential, batch, stress=pool.stress)
    torch.testing.assert_close(found.energy, wanted.energy, rtol=1e-12, atol=0)
    torch.testing.assert_close(found.forces, wanted.forces, rtol=0, atol=1e-11)
    if pool.stress:
        torch.testing.assert_close(found.stress, wanted.stress, rtol=0, atol=1e-11, equal_nan=True)


def test_structures_are_swapped(potential):
    """As an autobatcher does: some leave, others come, and the rest move."""
    pool = BatchPool(potential)
    alive, seen = list(range(8)), set()
    for new in range(8, 20):
        batch = batch_of(alive, seed=new)
        pool.hold(batch)
        require_equal(pool, batch)
        require_equal(pool, batch, batch.positions + 0.01 * torch.randn_like(batch.positions))
        seen.update(id(step) for step in pool.steps)
        alive = [*alive[new % 3 + 1 :], *range(new, new + new % 3 + (new % 2))]
    assert len(pool.steps) <= pool.most_steps
    sizes = {(step.batch.num_atoms, step.batch.num_systems) for step in pool.steps}
    assert all(atoms % 8 == 0 and systems % 8 == 0 for atoms, systems in sizes)
    assert len(seen) <= 8


def test_the_first_batch_is_not_padded_and_its_step_is_used_again(potential):
    pool = BatchPool(potential)
    first, other = batch_of(range(5)), batch_of(range(4))
    pool.hold(first)
    (step,) = pool.steps
    assert step.batch.num_atoms == first.num_atoms
    assert step.batch.num_systems == 5
    pool.hold(other)
    require_equal(pool, other)
    assert len(pool.steps) == 2
    pool.hold(first)
    assert pool.steps[-1] is step
    require_equal(pool, first)


def test_crystals_and_charges(potential, crystal, cation):
    pool = BatchPool(potential, stress=True)
    for batch in (
        batch_of(range(2)),
        batch_of(range(2), crystal=crystal),
        batch_of(range(3), crystal=crystal),
        Batch.from_systems([System.from_ase(atoms) for atoms in (cation, crystal, cation)]),
    ):
        pool.hold(batch)
        require_equal(pool, batch)


def test_a_pool_keeps_few_steps(potential):
    pool = BatchPool(potential, most_steps=2)
    for count in (1, 9, 20, 40):
        batch = batch_of(range(count))
        pool.hold(batch)
        require_equal(pool, batch)
        assert len(pool.steps) <= 2


@pytest.fixture
def sharing(monkeypatch):
    """Batches share steps, as on a GPU."""
    monkeypatch.setattr(BatchPool, "_shares", True)


def sizes_of(pool: BatchPool) -> list[tuple[int, int]]:
    return [(step.batch.num_atoms, step.batch.num_systems) for step in pool.steps]


@pytest.mark.usefixtures("sharing")
def test_a_batch_uses_a_step_that_is_little_larger(potential):
    pool = BatchPool(potential)
    pool.hold(batch_of([0]))
    for kinds, systems in (([0] * 14, 16), ([0] * 12, 16), ([0] * 13, 16)):  # 126, 108 and 117 atoms
        batch = batch_of(kinds)
        pool.hold(batch)
        require_equal(pool, batch)
        assert sizes_of(pool)[-1] == (128, systems)
    batch = batch_of([0] * 9)  # 81 atoms: the step has 1.6 times as many
    pool.hold(batch)
    require_equal(pool, batch)
    assert sizes_of(pool) == [(9, 1), (128, 16), (88, 16)]


@pytest.mark.usefixtures("sharing")
def test_a_size_that_is_evaluated_often_gets_a_step_of_its_own(potential, crystal, monkeypatch):
    monkeypatch.setattr(batch_pool, "OWN_AFTER", 2)
    pool = BatchPool(potential, stress=True)
    pool.hold(batch_of([0], crystal=crystal))
    large, small = batch_of([0] * 13, crystal=crystal), batch_of([0] * 11, crystal=crystal)
    pool.hold(large)
    pool.hold(small)
    strained = Batch(**{**vars(small), "cell": 1.01 * small.cell})
    require_equal(pool, small)
    require_equal(pool, strained)
    assert len(pool.steps) == 2
    wanted = evaluate(potential, strained, stress=True)
    found = pool(small.positions, None)  # in the new step, with the cell of the last call
    assert len(pool.steps) == 3
    assert sizes_of(pool)[-1] < sizes_of(pool)[-2]
    torch.testing.assert_close(found.forces, wanted.forces, rtol=0, atol=1e-11)
    torch.testing.assert_close(found.stress, wanted.stress, rtol=0, atol=1e-11, equal_nan=True)
    pool.hold(large)
    pool.hold(small)
    require_equal(pool, small)
    assert len(pool.steps) == 3


@pytest.mark.nightly
@pytest.mark.usefixtures("sharing")
def test_the_shared_step_makes_room_for_one_of_its_own_size(potential, monkeypatch):
    monkeypatch.setattr(batch_pool, "OWN_AFTER", 1)
    pool = BatchPool(potential)
    for count in (1, 13):
        pool.hold(batch_of([0] * count))
    batch = batch_of([0] * 11)
    pool.hold(batch)
    require_equal(pool, batch)
    assert sizes_of(pool)[-1] == (120, 16)
    shared, whole = weakref.ref(pool.steps[-1]), CapturedStep.__init__

    def limited(step, *args, **options):
        gc.collect()
        if shared() is not None:
            raise OutOfDeviceMemory("too much")
        whole(step, *args, **options)

    monkeypatch.setattr(CapturedStep, "__init__", limited)
    require_equal(pool, batch)
    assert sizes_of(pool) == [(104, 16)]


def test_steps_are_kept_by_memory(potential, monkeypatch):
    monkeypatch.setattr(CapturedStep, "memory_bytes", lambda step: 1000 * step.batch.num_atoms)
    pool = BatchPool(potential, most_steps=20, most_memory=200_000)
    for count, kept in ((2, [18]), (9, [18, 88]), (11, [88, 104]), (20, [192]), (30, [288]), (1, [16])):
        batch = batch_of([0] * count)
        pool.hold(batch)
        require_equal(pool, batch)
        assert [step.batch.num_atoms for step in pool.steps] == kept


@pytest.mark.parametrize("place", ["hold", "call"])
def test_other_steps_are_dropped_when_memory_runs_out(potential, monkeypatch, place):
    pool = BatchPool(potential)
    for count in (2, 9):
        pool.hold(batch_of([0] * count))
    whole = CapturedStep.__init__ if place == "hold" else CapturedStep.__call__
    batch = batch_of([0] * 20)
    if place == "call":
        pool.hold(batch)

    def limited(step, *args, **options):
        if len(pool.steps) > (0 if place == "hold" else 1):
            raise OutOfDeviceMemory("too much")
        return whole(step, *args, **options)

    monkeypatch.setattr(CapturedStep, "__init__" if place == "hold" else "__call__", limited)
    if place == "hold":
        pool.hold(batch)
    require_equal(pool, batch)
    assert sizes_of(pool) == [(192, 24)]


def test_after_an_error_no_results_of_another_batch_are_given(potential):
    pool = BatchPool(potential)
    batch = batch_of(range(3))
    with pytest.raises(ValueError, match="call hold before an evaluation"):
        pool(batch.positions, batch.cell)
    pool.hold(batch)
    unknown = batch.clone()
    unknown.atomic_numbers[2] = 92
    with pytest.raises(ValueError, match="92|U"):
        pool.hold(unknown)
    with pytest.raises(ValueError, match="call hold before an evaluation"):
        pool(batch.positions, batch.cell)
    pool.hold(batch)
    with pytest.raises(ValueError, match=r"holds 17 atoms in 3 systems, got positions \[16, 3\] and cell \[3, 3, 3\]"):
        pool(batch.positions[1:], batch.cell)
    broken = batch.positions.clone()
    broken[3, 1] = torch.nan
    with pytest.raises(NonFiniteError):
        pool(broken, batch.cell)
    require_equal(pool, batch)


def test_an_interrupted_change_drops_the_step(potential, monkeypatch):
    pool = BatchPool(potential)
    first, second = batch_of(range(3)), batch_of(range(3), seed=5)
    pool.hold(first)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(pool.steps[0]), "assign", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.hold(second)
    assert not pool.steps
    pool.hold(second)
    require_equal(pool, second)


def test_copies_have_no_steps(potential):
    pool = BatchPool(potential, stress=True)
    batch = batch_of(range(2))
    pool.hold(batch)
    other = copy.deepcopy(pool)
    assert not other.steps
    assert other.stress
    other.hold(batch)
    np.testing.assert_array_equal(other(batch.positions, batch.cell).forces, pool(batch.positions, batch.cell).forces)


def test_limits_must_be_positive(potential):
    for name in ("most_steps", "most_memory"):
        with pytest.raises(ValueError, match=f"{name} must be >= 1, got 0"):
            BatchPool(potential, **{name: 0})


@pytest.mark.gpu
def test_graphs_survive_swaps_on_a_gpu(make_potential):
    potential = make_potential(torch.float32).cuda()
    pool = BatchPool(potential, mode="graph", stress=True)
    first = batch_of(range(40)).to("cuda")
    pool.hold(first)
    pool(first.positions, first.cell)
    graphs = set()
    for new in range(6):
        batch = batch_of(range(new, 38 + new), seed=new).to("cuda")
        pool.hold(batch)
        for shift in (0.0, 0.01):
            found = pool(batch.positions + shift * torch.randn_like(batch.positions), batch.cell)
        found = pool(batch.positions, batch.cell)
        wanted = evaluate(potential, batch, stress=True)
        torch.testing.assert_close(found.forces, wanted.forces.double(), rtol=0, atol=1e-4)
        torch.testing.assert_close(found.energy, wanted.energy, rtol=1e-6, atol=1e-4)
        graphs.add(id(pool.steps[-1].policy.graphs["device"]))
        assert pool.steps[-1].mode == "graph"
    assert len(graphs) <= 2  # one a padded size
