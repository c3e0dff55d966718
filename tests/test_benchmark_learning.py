"""benchmarks/learning: configurations of the runs, and labels at equal errors of made-up curves."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks import learning, learning_cases, learning_summary
from torchmdx.learning.config import LearnConfig
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
    unequal = [row for row in rows if (row["strategy"], row["seed"], row["labels"]) != ("random", 1, 40)]
    assert learning_summary.gains(unequal)[0]["random_labels"] == 20  # a round that not all seeds have counts for none
