"""The plan of a run: its numbers, and that it writes nothing."""

import pytest

from tests.learning.conftest import settings, start_file
from torchmdx.learning.plan import plan


def test_the_plan_has_the_numbers_of_the_run(tmp_path):
    start_file(tmp_path / "start.extxyz")
    stop = {"rounds": 3, "labels": 9, "uncertainty": 0.1, "patience": 2, "hours": 1.5}
    lines = plan(settings(tmp_path, stop=stop, explore={"replicas": 2}))
    text = "\n".join(lines)
    assert [line.split()[0] for line in lines] == ["start", "explore", "select", "label", "train", "stop", "output"]
    for part in (
        "1 structure of 4 atoms; 4 frames to label first",
        "a round: 4 replicas in 1 batch on cpu, 40 steps of 0.5 fs, 16 frames; at most 0:00 (",
        "at most 3 frames, 1 of them at random",
        "at most 9 labels by emt",
        "4 times 2 potentials, anew, 1 epoch of up to 9 frames",
        "uncertainty at most 0.1 eV/Å in 2 rounds in a row; at most 3 rounds, 9 labels, 1.5 h",
        "run, new",
    ):
        assert part in text, part
    assert not (tmp_path / "run").exists()


def test_the_plan_of_a_run_that_has_begun_says_where_it_goes_on(finished):
    assert plan(finished[0])[-1].endswith("continues in round 002 after explore, label, select, train")


@pytest.mark.nightly
def test_labels_of_other_calculators_are_not_measured(tmp_path):
    start_file(tmp_path / "start.extxyz")
    found = plan(settings(tmp_path, label={"calculator": "ase.calculators.morse:MorsePotential"}))
    assert "the calculator's time is not measured" in found[3]


def test_what_the_run_would_refuse_is_refused(tmp_path):
    start_file(tmp_path / "start.extxyz")
    (tmp_path / "water.xyz").write_text("3\n\nO 0 0 0\nH 0 0 1\nH 0 1 0\n")
    start = {"structures": str(tmp_path / "water.xyz")}
    with pytest.raises(ValueError, match=r"explore\.pressures need structures that are periodic"):
        plan(settings(tmp_path, start=start, explore={"pressures": [1.0]}))
