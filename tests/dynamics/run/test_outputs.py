"""Trajectories and logs of a run: what is due, and cutting them to a step."""

import numpy as np
import pytest
from dcd import read_dcd

from torchmdx.dynamics.log import LogRow, columns_of, read_log
from torchmdx.dynamics.run import outputs as module
from torchmdx.dynamics.run.files import RunFiles
from torchmdx.dynamics.run.outputs import OutputSchedule, RunOutputs, Shape, lacking
from torchmdx.dynamics.trajectory import TrajectoryFrame
from torchmdx.dynamics.trajectory_formats import TrajectoryFormat

SCHEDULE, DCD = OutputSchedule(save_every=2, log_every=3), TrajectoryFormat("dcd")
SHAPES = [Shape(count, False, columns_of(periodic=False, ensemble=False)) for count in (2, 3)]


def frames(step):
    return [TrajectoryFrame(np.full((shape.num_atoms, 3), step + 0.5), None) for shape in SHAPES]


def rows(step):
    return [LogRow(step, 1e-3 * step, -number - step, 1.0, 300.0) for number in range(2)]


def record(outputs, steps):
    for step in steps:
        outputs.record(step, lambda step=step: frames(step), lambda step=step: rows(step))


def opened(files):
    outputs = RunOutputs(files, SCHEDULE, 1.0, DCD)
    outputs.create(SHAPES, ["", ""])
    return outputs


@pytest.fixture
def files(tmp_path):
    return RunFiles(str(tmp_path / "run"), 2)


def test_frames_and_rows_are_written_when_they_are_due(files):
    outputs = opened(files)
    record(outputs, range(8))
    outputs.close()
    for number, shape in enumerate(SHAPES):
        found = read_dcd(files.trajectories[number])
        np.testing.assert_array_equal(found["frames"][:, 0, 0], [0.5, 2.5, 4.5, 6.5])
        assert found["frames"].shape[1] == shape.num_atoms
        log = read_log(files.logs[number])
        assert log["step"].tolist() == [0, 3, 6]
        assert log["potential_eV"].tolist() == [-number, -number - 3, -number - 6]
        assert np.isnan(log["ns_per_day"][0])
        assert (log["ns_per_day"][1:] > 0).all()
    assert outputs.rows[1].step == 6


def test_files_are_cut_to_a_step_and_continued(files):
    outputs = opened(files)
    record(outputs, range(8))
    outputs.close()
    outputs = RunOutputs(files, SCHEDULE, 1.0, DCD)
    outputs.reopen(SHAPES, 5)
    assert read_dcd(files.trajectories[0])["frames"].shape[0] == 3
    assert read_log(files.logs[1])["step"].tolist() == [0, 3]
    record(outputs, range(5, 8))
    outputs.close()
    assert read_dcd(files.trajectories[1])["frames"][:, 0, 0].tolist() == [0.5, 2.5, 4.5, 6.5]
    before = files.trajectories[0].read_bytes()
    with pytest.raises(ValueError, match="must hold the 4 rows up to step 9, got 3"):
        RunOutputs(files, SCHEDULE, 1.0, DCD).reopen(SHAPES, 9)
    assert files.trajectories[0].read_bytes() == before


def test_nothing_is_written_if_what_is_due_cannot_be_made(files):
    outputs = opened(files)

    def fails():
        raise ArithmeticError("not finite")

    with pytest.raises(ArithmeticError, match="not finite"):
        outputs.record(0, lambda: frames(0), fails)
    assert outputs.trajectories[0].num_frames == 0
    record(outputs, [0, 0])  # what has been written is not written again
    assert [file.num_frames for file in outputs.trajectories] == [log.num_rows for log in outputs.logs] == [1, 1]
    outputs.close()


def test_checkpoints_are_due_by_steps_or_by_time(files, monkeypatch):
    outputs = RunOutputs(files, OutputSchedule(checkpoint_every=4), 1.0, DCD)
    assert [step for step in range(10) if outputs.checkpoint_due(step)] == [4, 8]
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    outputs = RunOutputs(files, OutputSchedule(), 1.0, DCD)
    assert not outputs.checkpoint_due(7)
    now[0] += 61
    assert outputs.checkpoint_due(7)
    outputs.sync()
    assert not outputs.checkpoint_due(8)


def test_a_schedule_has_intervals_of_at_least_one_step():
    assert OutputSchedule(6, 4, 10).next_stop(4) == 6
    assert OutputSchedule(6, 4).next_stop(6) == 8
    with pytest.raises(ValueError, match="save_every must be >= 1 step, got 0"):
        OutputSchedule(save_every=0)
    with pytest.raises(ValueError, match="checkpoint_every must be >= 1 step, got -1"):
        OutputSchedule(checkpoint_every=-1)


def test_files_lack_the_entries_of_a_step_until_they_are_written():
    assert lacking(0, 4, [0, 0]) == [0, 1]
    assert lacking(8, 4, [3, 2, 2]) == [1, 2]
    assert lacking(9, 4, [3, 3]) == []
    for step, written in ((8, [2, 1]), (9, [3, 2]), (1, [0])):
        with pytest.raises(ValueError, match=f"step {4 * min(written)} is not recorded, but the dynamics is at step"):
            lacking(step, 4, written)
