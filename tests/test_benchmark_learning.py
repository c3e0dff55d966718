"""benchmarks/learning*: configurations of the runs, and labels at equal errors of made-up curves."""

import json
import sys
from pathlib import Path

import ase
import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks import learning, learning_cases, learning_dft, learning_pool, learning_pools, learning_summary
from torchmdx import save
from torchmdx.datasets.labelling.geometry import UnlabelledStructure
from torchmdx.learning.config import LearnConfig
from torchmdx.learning.structures import system_of
from torchmdx.training.config_file import make_as


@pytest.mark.parametrize(("case", "strategy"), sorted({(case, strategy) for case, strategy, _ in learning.PLAN}))
def test_runs_of_a_case_differ_in_the_strategy_alone(case, strategy, tmp_path):
    made = [
        make_as(LearnConfig, learning.settings(case, one, 1, tmp_path, 1.0, "cpu")).plain()
        for one in (strategy, "ensemble")
    ]
    changed = learning.STRATEGIES[strategy]
    for section, values in made[1].items():
        for name, value in values.items():
            allowed = name == "directory" or section == "uncertainty" or name in changed.get(section, {})
            assert made[0][section][name] == value or allowed
    assert made[0]["select"]["count"] == learning.COUNT


def test_a_random_strategy_draws_all_frames():
    made = learning.settings("alloy", "random", 0, Path(), 1.0, "cpu")
    assert made["select"]["random"] == made["select"]["count"]


def test_labels_for_an_error_are_interpolated_between_rounds():
    curve = {20: 80.0, 40: 40.0, 80: 20.0}
    assert learning_summary.labels_for(curve, 40.0) == pytest.approx(40)
    assert learning_summary.labels_for(curve, 20 * np.sqrt(2)) == pytest.approx(40 * np.sqrt(2))
    assert learning_summary.labels_for(curve, 100.0) == 20
    assert learning_summary.labels_for(curve, 10.0) is None


def test_rows_gather_the_scores_of_rounds(tmp_path):
    folder = tmp_path / "alloy-random-2"
    folder.mkdir()
    scored = {"round-001": [{"set": "melt", "labels": 40, "force_rmse_meV": 9.0}]}
    (folder / learning.SCORES).write_text(json.dumps(scored))
    (row,) = learning.scores(tmp_path)
    assert [row[key] for key in learning.KEYS] == ["curve", "alloy", "random", 2, 1, "melt"]
    assert row["labels"] == 40


def test_slabs_and_crystals_have_the_share_of_gold():
    for made in (learning_cases.alloy(0.25, 0), learning_cases.slab(0.25, 0)):
        gold = (made.numbers == learning_cases.GOLD).mean()
        assert gold == pytest.approx(0.25, abs=0.02)
        assert made.pbc.all()


def test_half_the_labels_for_the_same_error_are_a_share_of_one_half():
    rows = [
        {
            "kind": "curve", "case": "alloy", "strategy": strategy, "seed": seed, "round": number, "set": "all",
            "labels": labels, learning_summary.MEASURED: factor * 100 / labels, "force_rmse_meV": 1.0, "rank": None,
            "member_energy_rmse_meV": 1.0, "energy_rmse_meV": 1.0,
        }
        for strategy, factor in (("random", 2.0), ("ensemble", 1.0))
        for seed in range(2)
        for number, labels in enumerate((10, 20, 40))
    ]  # fmt: skip
    (gain,) = learning_summary.gains(rows)
    assert (gain["strategy"], gain["random_labels"]) == ("ensemble", 40)
    assert gain["share"] == pytest.approx(0.5)
    assert gain["least_share"] == pytest.approx(0.5)
    assert gain["most_share"] == pytest.approx(0.5)
    unequal = [row for row in rows if (row["strategy"], row["seed"], row["labels"]) != ("random", 1, 40)]
    assert learning_summary.gains(unequal)[0]["random_labels"] == 20  # a round that not all seeds have counts for none


def test_a_pool_begins_with_a_frame_of_each_starting_structure():
    starts = ["solid 1"] * 20 + ["melt 3"] * 2 + ["surface 2"] * 3
    order = learning_pool.in_order(starts, seed=4)
    assert sorted(order) == list(range(25))
    assert {starts[k] for k in order[:3]} == set(starts)
    assert order != learning_pool.in_order(starts, seed=5)


def test_spreads_of_frames_are_those_of_the_worst_atom():
    forces = np.random.default_rng(0).normal(size=(3, 2, 4, 3))
    wanted = [max(np.sqrt(sum(np.var(forces[:, k, i, x], ddof=1) for x in range(3))) for i in range(4)) for k in (0, 1)]
    assert learning_pool.spread([list(own) for own in forces]) == pytest.approx(wanted)


def test_trainings_of_a_pool_differ_in_their_frames_alone(tmp_path):
    counts, steps = (learning_pool.SIZES[0], learning_pool.SIZES[-1]), learning_pool.STEPS
    small, large = (learning_pool.config_of(tmp_path / "a", tmp_path, count, 1, steps) for count in counts)
    found = [
        one.training.epochs * (count - one.data.validation) / one.training.batch_size
        for one, count in zip((small, large), counts, strict=True)
    ]
    assert found == pytest.approx([steps] * 2, rel=0.02)
    assert small.optimizer.learning_rate == large.optimizer.learning_rate
    assert small.model == large.model


def test_chosen_frames_of_a_pool_are_new(tmp_path, potential):
    path = tmp_path / "a.safetensors"
    save(potential, path)
    frames = [learning_cases.alloy(0.0, 0, 1.0 + 0.02 * k) for k in range(6)]
    pool = [system_of(UnlabelledStructure.from_ase(frame)) for frame in frames]
    found = learning_pool.select("ensemble", str(path), np.arange(6.0), pool, [5, 0], 3)
    assert len(found) == 3
    assert not {0, 5} & set(found)
    assert learning_pool.select("diverse", str(path), np.arange(6.0), pool, [5, 0], 4) != []


def test_rare_and_even_pools_have_the_same_number_of_frames():
    for parts in learning_pools.PARTS.values():
        counts = {
            kind: [part.frames[kind] * len(part.jobs("", 0)) for part in parts.values()]
            for kind in (learning_pools.RARE, learning_pools.EVEN)
        }
        rare, even = counts.values()
        assert rare[0] / sum(rare) == pytest.approx(0.8, abs=0.01)
        assert sum(even) == pytest.approx(sum(rare), rel=0.05)


def test_frames_for_dft_grow_evenly_and_tests_come_first():
    plan = learning_dft.plan()
    tests = learning_dft.TESTED * (len(learning_dft.TRAINED) + len(learning_dft.UNSEEN))
    assert all(k < learning_dft.TESTED for _, k in plan[:tests])
    first = plan[tests : tests + len(learning_dft.TRAINED)]
    assert first == [(name, learning_dft.TESTED) for name in learning_dft.TRAINED]
    assert not set(learning_dft.UNSEEN) & {name for name, k in plan if k >= learning_dft.TESTED}
    every = (*learning_dft.TRAINED, *learning_dft.UNSEEN, *learning_dft.REPLAYED)
    assert len(set(every)) == len(every)


def test_subsets_for_dft_are_complete_and_apart_from_the_tests():
    frames = []
    for place, (name, _) in enumerate(learning_dft.plan()):
        if place < 80:
            frames.append(ase.Atoms("H", info={"place": place, "molecule": name}))
    tests, training = learning_dft.subsets(frames)
    assert all(len(own) == count for count, own in training.items())
    even = [len([one for one in training[40] if one.info["molecule"] == name]) for name in learning_dft.TRAINED]
    assert even == [4] * len(learning_dft.TRAINED)
    assert max(training) == 80 - sum(map(len, tests.values()))
    held = {one.info["place"] for own in tests.values() for one in own}
    assert not held & {one.info["place"] for own in training.values() for one in own}
    assert {one.info["molecule"] for one in tests["unseen"]} == set(learning_dft.UNSEEN)


def test_gains_of_another_error_are_rows_of_their_own():
    rows = [
        {
            "kind": "curve", "case": "alloy, rare", "strategy": strategy, "seed": seed, "round": number, "set": "all",
            "labels": labels, learning_summary.MEASURED: 1.0, "tail_meV": factor * (1 + seed) / labels, "rank": None,
        }
        for strategy, factor in (("random", 1.0), ("last_layer", 0.25))
        for seed in range(2)
        for number, labels in enumerate((10, 20, 40))
    ]  # fmt: skip
    (gain,) = learning_summary.gains(rows, learning_summary.TAIL)
    assert gain["kind"] == "gain, tail_meV"
    assert (gain["share"], gain["error_meV"]) == (pytest.approx(0.25), pytest.approx(1.5 / 40))
    assert (gain["least_share"], gain["most_share"]) == (0.25, pytest.approx(1 / 3))


def test_half_the_labels_are_compared_with_all_of_a_random_selection():
    rows = [
        {"case": "alloy, rare", "strategy": strategy, "seed": seed, "round": number, "set": "all", "labels": labels}
        | {learning_summary.MEASURED: factor * (1 + seed) / labels}
        for strategy, factor in (("random", 8.0), ("last_layer", 3.0))
        for seed in range(2)
        for number, labels in enumerate((10, 20, 40))
    ]
    found = {row["labels"]: row for row in learning_summary.halves(rows)}
    assert set(found) == {10, 20}
    assert found[20]["error_meV"] == pytest.approx(4.5 / 20)
    assert (found[20]["most"], found[20]["random_least"]) == (pytest.approx(6 / 20), pytest.approx(8 / 40))
    assert (found[20]["random_meV"], found[20]["random_labels"]) == (pytest.approx(12 / 40), 40)
