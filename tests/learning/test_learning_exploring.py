"""The stage of exploration."""

import numpy as np
import pytest

from tests.learning.conftest import settings
from torchmdx.learning.exploring import Beginnings, batch_files, explore, read_frames, said, starts_of
from torchmdx.learning.run_folder import RunFolder
from torchmdx.learning.stage import read_json
from torchmdx.learning.structures import read_structures
from torchmdx.runtime.interrupt import Interrupts


@pytest.fixture
def run(finished):
    return RunFolder(finished[0], Interrupts(), lambda text: None)


def test_results_are_those_of_the_frames(run):
    result = read_json(run.place(1, "explore") / "done.json")["result"]
    frames = read_frames(run, 1, Beginnings.of(run, 1))
    values = np.sort([frame.uncertainty for frame, _, _ in frames])
    assert result["frames"] == len(frames) == 8
    assert result["uncertainty"] == values[7]
    assert result["median"] == values[3]
    assert result["endings"] == {"whole": 2, "threshold": 0, "failed": 0}
    assert result["steps"] == 80
    assert [path.name for path in batch_files(run.place(1, "explore"))] == ["batch-000.npz"]
    assert {(replica.temperature, len(one.numbers)) for _, replica, one in frames} == {(600.0, 4), (1500.0, 4)}


def test_replicas_begin_at_labelled_frames_if_asked(run):
    config = run.config.model_copy(update={"explore": run.config.explore.model_copy(update={"begin": "labelled"})})
    other = RunFolder(config, Interrupts(), lambda text: None)
    structures, names = starts_of(other, 2)
    known = [one.positions for path in run.labelled(2).values() for one in read_structures(path)]
    assert any(np.array_equal(structures[0].positions, one) for one in known)
    assert "labelled.extxyz, frame" in names[0]
    assert starts_of(other, 2)[1] == names
    assert starts_of(run, 2)[1] == ["start.extxyz"]


def test_a_single_base_potential_cannot_be_explored_with(tmp_path, finished):
    start = {"structures": finished[0].start.structures, "checkpoint": "organic-1", "count": 0}
    run = RunFolder(settings(tmp_path, start=start), Interrupts(), lambda text: None)
    run.open()
    from torchmdx.learning.stages import start as begin

    begin(run)
    with pytest.raises(ValueError, match="needs an ensemble to explore with, got the single potential 'organic-1'"):
        explore(run, 1)


def test_the_line_names_every_kind_of_ending():
    result = {
        "endings": {"whole": 1, "threshold": 2, "failed": 3}, "replicas": 6, "branched": 4, "frames": 1200,
        "median": 0.1, "uncertainty": 0.25,
    }  # fmt: skip
    assert said(result, 1.0, "eV/Å") == (
        "1,200 frames, uncertainty 0.100 eV/Å (median), 0.250 (95 %); 1 of 6 replicas ran to the end, "
        "2 went over 1 eV/Å, 3 failed, 4 branches"
    )
