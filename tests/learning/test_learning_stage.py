"""Stages: complete, begun, or of other inputs."""

import json

import pytest

from torchmdx.learning.stage import StageFolder, read_json


def begun(folder, file, **settings):
    stage = StageFolder(folder / "stage", settings or {"count": 8}, {"start.xyz": file})
    stage.begin()
    return stage


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "start.xyz"
    path.write_text("one")
    return path


def test_a_stage_is_complete_once_it_is_finished(tmp_path, file):
    stage = begun(tmp_path, file)
    assert stage.result is None
    (stage.folder / "out.txt").write_text("result")
    finished = stage.finish({"frames": 3}, ["out.txt"])
    again = begun(tmp_path, file).result
    assert again == finished
    assert again["frames"] == 3
    assert again["seconds"] >= 0
    inputs = read_json(stage.folder / "inputs.json")
    assert inputs["settings"] == {"count": 8}
    # `printf one | sha256sum`
    assert inputs["files"] == {"start.xyz": "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"}


def test_other_inputs_are_refused_with_both_values(tmp_path, file):
    begun(tmp_path, file)
    with pytest.raises(FileExistsError, match="was made with count 8, got 9"):
        begun(tmp_path, file, count=9)
    file.write_text("two")
    with pytest.raises(FileExistsError, match=r"was made with another content of start\.xyz"):
        begun(tmp_path, file)


def test_a_changed_output_is_refused(tmp_path, file):
    stage = begun(tmp_path, file)
    (stage.folder / "out.txt").write_text("result")
    stage.finish({}, ["out.txt"])
    (stage.folder / "out.txt").write_text("other")
    with pytest.raises(ValueError, match=r"out\.txt' must be as its stage wrote it"):
        _ = begun(tmp_path, file).result


def test_damaged_records_are_named(tmp_path, file):
    stage = begun(tmp_path, file)
    (stage.folder / "done.json").write_text("{")
    with pytest.raises(ValueError, match=r"done\.json"):
        _ = stage.result


def test_time_of_stopped_sessions_is_counted(tmp_path, file):
    stage = begun(tmp_path, file)
    stage.pause()
    (stage.folder / "spent.json").write_text(json.dumps(100.0))
    assert 100 < begun(tmp_path, file).finish({})["seconds"] < 110
    assert not (stage.folder / "spent.json").exists()


def test_what_cannot_be_continued_is_removed(tmp_path, file):
    stage = begun(tmp_path, file)
    (stage.folder / "training").mkdir()
    (stage.folder / "training" / "x").write_text("")
    (stage.folder / "kept.txt").write_text("")
    stage.empty("kept.txt")
    assert {path.name for path in stage.folder.iterdir()} == {"inputs.json", "kept.txt"}


def test_files_that_a_killed_process_was_writing_are_removed(tmp_path, file):
    stage = StageFolder(tmp_path / "stage", {}, {"data": file})
    stage.begin()
    partial = tmp_path / "stage" / ".done.json.12345.part"
    partial.write_text("{")
    stage.begin()
    assert not partial.exists()
    assert stage.result is None
