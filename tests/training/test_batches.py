"""Batches: order, padding, weights of labels, shares of processes, reading ahead."""

import threading
from dataclasses import replace

import made_up
import numpy as np
import pytest
import torch

from torchmdx.step.padding import padded_atoms
from torchmdx.training.batches import Batches, Ranks, Replay


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    def change(index, frame):
        if index % 5 == 0:
            return replace(frame, energy=np.array([np.nan]))
        return replace(frame, forces=np.full_like(frame.forces, np.nan)) if index % 7 == 0 else frame

    return made_up.store(tmp_path_factory.mktemp("data") / "st", 50, change=change)


def batches(store, indices=None, size=8, seed=3, ranks=None, prefetch=2, replay=None):
    return Batches(
        store,
        np.arange(len(store)) if indices is None else indices,
        size,
        cutoff=4.0,
        dtype=torch.float64,
        device=torch.device("cpu"),
        seed=seed,
        ranks=ranks or Ranks(),
        prefetch=prefetch,
        replay=replay,
    )


def test_order_depends_only_on_seed_and_epoch(store):
    first, again = batches(store), batches(store)
    orders = [np.concatenate(first.order(epoch)) for epoch in range(3)]
    assert all(len(set(order)) == 48 for order in orders)
    assert not np.array_equal(orders[0], orders[1])
    assert np.array_equal(orders[2], np.concatenate(again.order(2)))
    assert not np.array_equal(orders[0], np.concatenate(batches(store, seed=4).order(0)))
    assert set(np.concatenate(orders)) == set(range(50))  # who is left out changes
    whole = batches(store, seed=None)
    assert np.array_equal(np.concatenate(whole.order(5)), np.arange(50))
    assert (len(first), len(whole)) == (6, 7)
    started = [labelled.frames for labelled in first.epoch(1, start=4)]
    assert [list(f) for f in started] == [list(f) for f in first.order(1)[4:]]


def test_a_batch_has_its_frames_isolated_padding_and_weights_of_sum_one(store):
    labelled = next(iter(batches(store).epoch(0)))
    frames = store.gather(labelled.frames)
    real, batch = frames.num_atoms, labelled.batch
    assert batch.num_systems == 9
    assert batch.num_atoms == padded_atoms(real) > real
    assert torch.equal(batch.system_index[real:], torch.full((batch.num_atoms - real,), 8))
    padding = batch.positions[real:]
    assert torch.pdist(padding).min() >= 4.0 * 1.49
    starts = np.concatenate([[0], np.cumsum(frames.counts)])
    for k in range(8):
        part = slice(starts[k], starts[k + 1])
        np.testing.assert_allclose(
            torch.pdist(batch.positions[part]), torch.pdist(torch.as_tensor(frames.positions[part])), atol=1e-12
        )
        assert batch.positions[part].mean(0).abs().max() < 1e-9
    has_energy, has_forces = ~np.isnan(frames.energy), ~np.isnan(frames.forces[:, 0])
    np.testing.assert_allclose(labelled.energy_weight, [*(has_energy / has_energy.sum()), 0.0])
    wanted = np.zeros(batch.num_atoms)
    wanted[:real] = has_forces / (3 * has_forces.sum())
    np.testing.assert_allclose(labelled.force_weight, wanted)
    assert torch.equal(labelled.stress_weight, torch.zeros(9, dtype=torch.float64))
    for tensor in labelled.tensors().values():
        assert torch.isfinite(tensor).all()
    assert labelled.totals == (has_energy.sum(), has_forces.sum(), 0, 0, 0)


def test_shares_of_processes_make_up_the_batch(store):
    parts = [list(batches(store, ranks=Ranks(k, 2)).epoch(2)) for k in range(2)]
    whole = list(batches(store).epoch(2))
    for one, left, right in zip(whole, *parts, strict=True):
        assert sorted(one.frames) == sorted([*left.frames, *right.frames])
        assert left.totals == right.totals == one.totals
        for name in ("energy_weight", "force_weight"):
            total = getattr(left, name).sum() + getattr(right, name).sum()
            assert total.item() == pytest.approx(getattr(one, name).sum().item())
        assert abs(left.num_real - right.num_real) <= 8


def test_structures_of_one_size_are_not_padded(tmp_path):
    store = made_up.store(tmp_path / "st", 10, sizes=(5, 5))
    labelled = next(iter(batches(store, size=4).epoch(0)))
    assert (labelled.batch.num_atoms, labelled.num_real) == (20, 20)


def test_batches_have_few_shapes():
    sizes = {padded_atoms(count) for count in range(1000, 2000)}
    assert len(sizes) <= 9
    assert all(count <= padded_atoms(count) <= 1.125 * count + 8 for count in range(5000))


def test_the_reader_thread_stops_with_its_consumer_and_passes_on_errors(store):
    reading = batches(store).epoch(0)
    next(reading)
    reading.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "torchmdx-reader"]
    broken = batches(store)
    broken.order = lambda epoch: [np.array([999])]
    with pytest.raises(IndexError, match="got 999"):
        list(broken.epoch(0))
    with pytest.raises(ValueError, match="at least one frame, got none"):
        batches(store, indices=np.array([], dtype=np.int64))


def test_replayed_frames_are_a_share_of_each_batch_and_are_passed_over_in_turn(store):
    own, old = np.arange(20), np.arange(20, 27)
    made = batches(store, own, size=8, replay=Replay(old, 0.25))
    again = batches(store, own, size=8, replay=Replay(old, 0.25))
    drawn = []
    for epoch in range(7):
        order = made.order(epoch)
        assert len(order) == len(made) == 3
        assert [(batch < 20).sum() for batch in order] == [6, 6, 6]
        assert len(np.unique(np.concatenate([batch[batch < 20] for batch in order]))) == 18
        drawn += [batch[batch >= 20] for batch in order]
        assert all(np.array_equal(a, b) for a, b in zip(order, again.order(epoch), strict=True))
    passes = np.concatenate(drawn).reshape(6, 7)
    assert all(np.array_equal(np.sort(one), old) for one in passes)
    assert len({tuple(one) for one in passes}) > 1
    assert made.read(made.order(0)[0]).batch.num_systems == 9


def test_few_new_frames_keep_the_share(store):
    made = batches(store, np.arange(3), size=32, replay=Replay(np.arange(10, 40), 0.5))
    assert [len(batch) for batch in made.order(0)] == [6]
    least = batches(store, np.arange(9), size=8, replay=Replay(np.arange(10, 40), 0.01))
    assert [(batch >= 10).sum() for batch in least.order(0)] == [1]


def test_shares_of_processes_have_replayed_frames_and_the_same_totals(store):
    make = [batches(store, np.arange(20), replay=Replay(np.arange(20, 27), 0.5), ranks=Ranks(k, 2)) for k in (0, 1)]
    batch = make[0].order(0)[0]
    one, other = (each.read(batch) for each in make)
    assert sorted([*one.frames, *other.frames]) == sorted(batch)
    assert one.totals == other.totals == batches(store).read(batch).totals
