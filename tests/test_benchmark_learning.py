"""benchmarks/learning: configurations of the runs, and labels at equal errors of made-up curves."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks import learning, learning_cases
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
    assert learning.labels_for(curve, 40.0) == pytest.approx(40)
    assert learning.labels_for(curve, 20 * np.sqrt(2)) == pytest.approx(40 * np.sqrt(2))
    assert learning.labels_for(curve, 100.0) == 20
    assert learning.labels_for(curve, 10.0) is None


def test_rows_gather_the_scores_of_rounds(tmp_path):
    folder = tmp_path / "alloy-random-2"
    folder.mkdir()
    scored = {"round-001": [{"set": "melt", "labels": 40, "force_rmse_meV": 9.0}]}
    (folder / learning.SCORES).write_text(json.dumps(scored))
    (row,) = learning.rows(tmp_path)
    assert [row[key] for key in learning.KEYS] == ["curve", "alloy", "random", 2, 1, "melt"]
    assert row["labels"] == 40


def test_slabs_and_crystals_have_the_share_of_gold():
    for made in (learning_cases.alloy(0.25, 0), learning_cases.slab(0.25, 0)):
        gold = (made.numbers == learning_cases.GOLD).mean()
        assert gold == pytest.approx(0.25, abs=0.02)
        assert made.pbc.all()
