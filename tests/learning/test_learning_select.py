"""Selection: against an oracle that compares every pair, and what a selection must and must not take."""

import itertools
import math

import numpy as np
import pytest
import torch

from torchmdx.learning.select import RANDOM, UNCERTAIN, choose, describe, vectors
from torchmdx.models.potential import Potential
from torchmdx.models.tensornet import TensorNetConfig
from torchmdx.structures.system import System


def oracle(candidates, uncertainty, known, count, power, duplicates, least):
    """Places by the definition, in plain Python: the largest u d^p each time, over all pairs anew."""
    taken = []
    for _ in range(count):
        best, place = -1.0, None
        for k, row in enumerate(candidates):
            others = [*known, *(candidates[j] for j in taken)]
            d = min((math.dist(row, other) for other in others), default=math.inf)
            if k in taken or d <= duplicates or uncertainty[k] < least:
                continue
            score = uncertainty[k] * (1.0 if math.isinf(d) else d) ** power
            if score > best:
                best, place = score, k
        if place is None:
            break
        taken.append(place)
    return taken


@pytest.mark.parametrize("power", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("num_known", [0, 5])
def test_the_choice_is_that_of_the_definition(power, num_known):
    rng = np.random.default_rng(int(10 * power) + num_known)
    candidates = np.round(rng.normal(size=(40, 3)), 1)  # with copies
    known, uncertainty = rng.normal(size=(num_known, 3)), rng.random(40)
    found, _ = choose(candidates, uncertainty, known, count=12, diversity=power, duplicates=0.2, least=0.3)
    expected = oracle(candidates, uncertainty, known, 12, power, 0.2, 0.3)
    assert [one.place for one in found] == expected
    assert len(expected) >= 8
    assert {one.why for one in found} == {UNCERTAIN}


def test_chosen_frames_are_no_near_duplicates_of_each_other_or_of_labelled_ones():
    rng = np.random.default_rng(0)
    known = rng.normal(size=(6, 4))
    copies = np.concatenate([known + 1e-3, rng.normal(size=(30, 4))])
    candidates = np.concatenate([copies, copies + 1e-4])
    uncertainty = np.concatenate([np.full(6, 100.0), np.ones(30)] * 2)
    found, double = choose(candidates, uncertainty, known, count=100, duplicates=0.01)
    assert sorted(double.tolist()) == [*range(6), *range(36, 42)]
    rows = np.concatenate([known, candidates[[one.place for one in found]]])
    assert len(found) == 30
    assert min(math.dist(a, b) for a, b in itertools.combinations(rows.tolist(), 2)) > 0.01


def test_diversity_spreads_what_uncertainty_alone_would_take_from_one_place():
    crowd, far = np.zeros((10, 2)) + np.linspace(0, 0.1, 10)[:, None], np.array([[5.0, 0.0], [0.0, 5.0]])
    candidates = np.concatenate([crowd, far])
    uncertainty = np.array([1.0] * 10 + [0.9, 0.9])
    both, _ = choose(candidates, uncertainty, np.zeros((0, 2)), count=3)
    alone, _ = choose(candidates, uncertainty, np.zeros((0, 2)), count=3, diversity=0.0)
    assert {10, 11} <= {one.place for one in both}
    assert max(one.place for one in alone) < 10


def test_random_frames_come_first_whatever_their_uncertainty_is_but_without_duplicates():
    candidates = np.array([[0.0], [1.0], [1.0], [2.0], [9.0]])
    found, _ = choose(
        candidates, np.array([0.0, 0.0, 0.0, 0.0, 5.0]), np.array([[0.0]]), count=3, num_random=2,
        order=[0, 2, 1, 3, 4], least=1.0,
    )  # fmt: skip
    assert [(one.place, one.why) for one in found] == [(2, RANDOM), (3, RANDOM), (4, UNCERTAIN)]
    assert [one.distance for one in found] == [1.0, 1.0, 7.0]


def test_nothing_is_chosen_below_the_least_uncertainty():
    found, double = choose(np.eye(3), np.array([0.1, 0.2, 0.3]), np.zeros((0, 3)), count=3, least=0.25)
    assert [one.place for one in found] == [2]
    assert len(double) == 0


def environments(count, channels=8, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return np.array([1, 1, 8] * count), scale * rng.normal(size=(3 * count, channels))


def test_distances_of_independent_frames_do_not_depend_on_atoms_channels_and_units():
    typical = []
    for count, channels, scale in ((4, 8, 1.0), (64, 8, 1.0), (16, 64, 1.0), (16, 8, 1e3)):
        frames = [environments(count, channels, seed, scale) for seed in range(40)]
        rows = vectors(frames, frames)
        typical.append(np.median([math.dist(a, b) for a, b in itertools.combinations(rows.tolist(), 2)]))
    assert np.ptp(typical) < 0.15 * np.mean(typical)
    assert 0.9 < np.mean(typical) < 2.0


def test_a_few_broken_frames_do_not_make_the_others_alike():
    frames = [environments(8, seed=seed) for seed in range(30)]
    broken = [(numbers, 1e3 * values) for numbers, values in frames[:2]]
    alone, among = vectors(frames[2:], frames[2:]), vectors(frames[2:], [*frames[2:], *broken])
    assert math.dist(among[0], among[1]) == pytest.approx(math.dist(alone[0], alone[1]), rel=0.2)


def test_another_composition_is_far_and_the_order_of_atoms_is_not():
    frames = [environments(8, seed=seed) for seed in range(10)]
    numbers, values = frames[0]
    order = np.random.default_rng(1).permutation(len(numbers))
    other = (np.where(np.arange(len(numbers)) < 12, 8, numbers), values)
    rows = vectors([frames[0], (numbers[order], values[order]), other], [*frames, other])
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-12)
    assert math.dist(rows[0], rows[2]) > 0.8


def test_a_channel_that_does_not_vary_says_nothing():
    frames = [(numbers, np.concatenate([values, np.full((len(values), 1), 0.1)], axis=1))
              for numbers, values in (environments(8, seed=seed) for seed in range(5))]  # fmt: skip
    assert np.isfinite(vectors(frames, frames)).all()


def test_descriptors_are_those_of_the_first_member_and_do_not_change_under_rotation():
    torch.manual_seed(0)
    potential = Potential(TensorNetConfig(num_channels=4, num_layers=0, num_radial=4, cutoff=3.0), []).double()
    rng = np.random.default_rng(0)
    positions = 1.2 * rng.normal(size=(5, 3))
    turn, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    first, second = describe(potential, [System.create(p, [8, 1, 1, 6, 1]) for p in (positions, positions @ turn)])
    assert first[0].tolist() == [8, 1, 1, 6, 1]
    assert first[1].shape[0] == 5
    np.testing.assert_allclose(first[1], second[1], atol=1e-8)
