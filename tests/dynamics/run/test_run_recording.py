"""Recorded runs: what is written, and continuing after an end, an interruption, a kill, a failure and a full disk."""

import os
import signal
import subprocess
import sys
import textwrap
import warnings

import forked_programs
import numpy as np
import pytest
import torch

from torchmdx import Dynamics, System
from torchmdx.dynamics.log import read_log
from torchmdx.dynamics.run.files import RunFiles
from torchmdx.dynamics.run.recording import Recording, Unstable
from torchmdx.report.view.dcd import open_dcd
from torchmdx.step.results import NonFiniteError

INTERVALS = dict(save_every=4, log_every=3)
TINY = dict(num_layers=0, num_channels=4, num_radial=4)

# The cell of the crystal is rotated, of which a recording warns.
pytestmark = pytest.mark.filterwarnings("ignore:trajectories hold lengths and angles of cells")


@pytest.fixture
def make(make_potential, ethanol, crystal):
    potential = make_potential(dtype=torch.float32, **TINY)
    systems = [System.from_ase(ethanol), System.from_ase(crystal)]

    def dynamics(**options):
        return Dynamics(potential, systems, **{"timestep": 0.25, "seed": 3, **options})

    return dynamics


@pytest.fixture
def prefix(tmp_path):
    return str(tmp_path / "run")


def record(dynamics, prefix, num_steps, **options):
    with Recording.begin(dynamics, prefix, **{**INTERVALS, **options}) as recording:
        recording.run(num_steps)
    return recording


def contents(prefix):
    """Bytes of the trajectories, and lines of the logs without the speed, which is not reproducible."""
    found = {}
    for number in (0, 1):
        with open(f"{prefix}.{number}.dcd", "rb") as file:
            found[f"{number}.dcd"] = file.read()
        with open(f"{prefix}.{number}.log") as file:
            found[f"{number}.log"] = [line.rsplit(",", 1)[0] for line in file]
    return found


def test_frames_and_rows_are_those_of_the_snapshots(make, prefix, ethanol):
    record(make(), prefix, 10)
    states = {0: make().snapshot()} | {state.step: state for state in make().snapshots(10, every=1)}
    for number, own in ((0, slice(0, 9)), (1, slice(9, 12))):
        dcd = open_dcd(f"{prefix}.{number}.dcd")
        assert dcd.steps().tolist() == [0, 4, 8]
        positions, cells = dcd.read(np.arange(3))
        assert (cells is not None) == (number == 1)
        for frame, step in enumerate((0, 4, 8)):
            given = states[step].positions[own]
            if number:  # in another orientation
                given, positions[frame] = (np.linalg.norm(x[:, None] - x, axis=-1) for x in (given, positions[frame]))
            np.testing.assert_allclose(positions[frame], given, atol=1e-6)
        log = read_log(RunFiles(prefix, 2).logs[number])
        assert log["step"].tolist() == [0, 3, 6, 9]
        for row, step in enumerate((0, 3, 6, 9)):
            assert log["potential_eV"][row] == pytest.approx(states[step].energy[number], abs=1e-7)
            assert log["temperature_K"][row] == pytest.approx(states[step].temperature[number], abs=1e-2)
            assert log["time_ps"][row] == pytest.approx(step * 0.25e-3)
        assert ("volume_A3" in log) == (number == 1)


def test_a_continued_run_is_as_one_that_never_ended(make, prefix, tmp_path):
    record(make(), prefix, 21)
    record(make(), str(tmp_path / "other"), 10)
    with Recording.resume(make(), str(tmp_path / "other"), **INTERVALS) as recording:
        assert recording.saved_step == 10
        assert recording.run(11) == 21
    assert contents(tmp_path / "other") == contents(prefix)


@pytest.mark.parametrize("at", [0, 7, 8])
def test_an_interruption_ends_a_run_at_any_step(make, prefix, tmp_path, at):
    record(make(), prefix, 15)
    dynamics = make()
    with Recording.begin(dynamics, str(tmp_path / "other"), **INTERVALS) as recording:
        assert recording.run(15, interrupted=lambda: dynamics.num_steps >= at) == at
    with Recording.resume(make(), str(tmp_path / "other"), **INTERVALS) as recording:
        assert recording.run(15 - at) == 15
    assert contents(tmp_path / "other") == contents(prefix)


def test_what_was_written_after_the_restart_file_is_repeated(make, prefix, tmp_path):
    """As after a kill: frames, rows and half a frame are there, but the restart file is older."""
    record(make(), prefix, 20)
    other = str(tmp_path / "other")
    with Recording.begin(make(), other, **INTERVALS, checkpoint_every=6) as recording:
        for state in recording.dynamics.snapshots(15, every=[3, 4]):
            recording._record(state)
            if state.step == 6:
                recording.save(state)
    with open(f"{other}.0.dcd", "ab") as file:
        file.write(b"\x05" * 77)
    with Recording.resume(make(), other, **INTERVALS) as recording:
        assert recording.saved_step == 6
        recording.run(14)
    assert contents(other) == contents(prefix)


@pytest.mark.nightly
def test_a_killed_process_leaves_files_to_continue_from(tmp_path):
    script = textwrap.dedent(
        """
        import sys, torch
        from ase.build import molecule
        from torchmdx import Dynamics, Potential, System, TensorNetConfig
        from torchmdx.dynamics.run.recording import Recording
        torch.manual_seed(0)
        potential = Potential(TensorNetConfig(num_layers=0, num_channels=4, num_radial=4))
        dynamics = Dynamics(potential, System.from_ase(molecule("CH4")), seed=1)
        intervals = dict(save_every=5, log_every=5, checkpoint_every=10)
        if sys.argv[1] == "resume":
            with Recording.resume(dynamics, "run", **intervals) as recording:
                print(recording.saved_step)
                recording.run(100 - recording.saved_step % 100)
        else:
            with Recording.begin(dynamics, "run", **intervals) as recording:
                recording.run(10**6, progress=lambda step, row: print(step, flush=True))
        """
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def start(word):
        command = [*forked_programs.python(), "-c", script, word]
        return subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)

    process = start("begin")
    for line in process.stdout:
        if int(line) >= 40:
            break
    process.send_signal(signal.SIGKILL)
    process.communicate()
    process = start("resume")
    assert int(process.communicate()[0]) >= 30
    assert process.returncode == 0
    steps = read_log(tmp_path / "run.log")["step"]
    np.testing.assert_array_equal(steps, 5 * np.arange(len(steps)))
    assert open_dcd(tmp_path / "run.dcd").num_frames == len(steps)


def test_a_failure_saves_the_step_before(make, prefix):
    dynamics = make()
    evaluate, count = dynamics.loop.step, 0

    class Failing:
        num_evaluations = 0
        buffers = evaluate.buffers

        def __call__(self, *given, **options):
            nonlocal count
            count += 1
            if count == 6:
                raise NonFiniteError("evaluation 6: not finite")
            return evaluate(*given, **options)

    with Recording.begin(dynamics, prefix, **INTERVALS) as recording:
        dynamics.loop.step = Failing()
        with pytest.raises(NonFiniteError, match=r"(?s)not finite.*last valid state saved is of step 5, in .*npz"):
            recording.run(20)
    with Recording.resume(make(), prefix, **INTERVALS) as recording:
        assert recording.saved_step == 5
        recording.run(3)


def test_a_run_that_flies_apart_is_an_error(make, prefix):
    dynamics = make()
    with Recording.begin(dynamics, prefix, **INTERVALS) as recording:
        dynamics.set_velocities(dynamics.snapshot().velocities * 50)
        with pytest.raises(Unstable, match=r"(?s)step 3: the run is unstable: structure 0 .*saved is of step 0"):
            recording.run(20)


def test_a_full_disk_names_the_file_and_loses_nothing(make, prefix, monkeypatch):
    dynamics = make()
    with Recording.begin(dynamics, prefix, **INTERVALS) as recording:
        recording.run(5)

        def full(file, data):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("torchmdx.dynamics.trajectory.write_all", full)
        with pytest.raises(OSError, match="run.0.dcd' could not be written"):
            recording.run(5)
    monkeypatch.undo()
    with Recording.resume(make(), prefix, **INTERVALS) as recording:
        assert recording.saved_step == 5
        recording.run(5)
    assert open_dcd(f"{prefix}.0.dcd").num_frames == 3


def test_runs_are_neither_overwritten_nor_mixed(make, prefix):
    record(make(), prefix, 4)
    before = contents(prefix)
    with pytest.raises(FileExistsError, match="run.0.dcd"):
        Recording.begin(make(), prefix, **INTERVALS)
    with pytest.raises(ValueError, match="a restart needs the settings of the run, got timestep in fs 0.5, was 0.25"):
        Recording.resume(make(timestep=0.5), prefix, **INTERVALS)
    with pytest.raises(ValueError, match="steps between frames 5, was 4"):
        Recording.resume(make(), prefix, save_every=5, log_every=3)
    with pytest.raises(ValueError, match="save_every must be >= 1 step, got 0"):
        Recording.begin(make(), prefix, save_every=0)
    assert contents(prefix) == before
    advanced = make()
    advanced.run(1)
    with pytest.raises(ValueError, match="a recording begins at step 0, got step 1"):
        Recording.begin(advanced, prefix, **INTERVALS, overwrite=True)
    record(make(), prefix, 8, overwrite=True)
    assert open_dcd(f"{prefix}.0.dcd").num_frames == 3


def test_missing_files_of_a_restart_are_named(make, prefix):
    record(make(), prefix, 4)
    os.remove(f"{prefix}.1.log")
    with pytest.raises(FileNotFoundError, match="run.1.log"):
        Recording.resume(make(), prefix, **INTERVALS)


def test_a_failed_write_loses_nothing_of_the_same_recording(make, prefix, tmp_path, monkeypatch):
    """In one of two trajectories, in a log, and in the middle of a row: the next call writes what is missing."""
    record(make(), prefix, 20)
    other = str(tmp_path / "other")
    with Recording.begin(make(), other, **INTERVALS) as recording:
        for steps, method in ((5, recording.outputs.trajectories[1]._file.write), (7, recording.outputs.logs[1].write)):
            fail = FailingOnce(method)
            monkeypatch.setattr(method.__self__, "write", fail)
            with pytest.raises(OSError, match="No space left"):
                recording.run(steps)
            assert fail.count
        monkeypatch.setattr(recording.outputs.logs[0], "_file", partly := FullAfter(recording.outputs.logs[0]._file, 9))
        with pytest.raises(OSError, match=r"other\.0\.log' could not be written \(No space left on device\)"):
            recording.run(7)
        partly.room = 10**6
        recording.run(20 - recording.dynamics.num_steps)
    assert contents(other) == contents(prefix)


class FailingOnce:
    """A method that fails at its first call."""

    def __init__(self, method):
        self.method, self.count = method, 0

    def __call__(self, *given):
        self.count += 1
        if self.count == 1:
            raise OSError(28, "No space left on device")
        return self.method(*given)


class FullAfter:
    """A file on a disk with room for so many bytes."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, data):
        if not self.room:
            raise OSError(28, "No space left on device")
        written = self.file.write(data[: self.room])
        self.room -= written
        return written

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_a_run_that_is_ahead_of_its_files_returns_to_them(make, prefix, tmp_path, monkeypatch):
    """As on a GPU, which takes the next steps before a frame is written: after an error and an interruption."""
    record(make(), prefix, 16)
    other, dynamics = str(tmp_path / "other"), make()
    snapshots = dynamics.snapshots

    def ahead(num_steps, every, **options):
        waiting = None
        for found in snapshots(num_steps, every):
            if waiting is not None:
                yield waiting
            waiting = found
        yield waiting

    monkeypatch.setattr(dynamics, "snapshots", ahead)
    with Recording.begin(dynamics, other, **INTERVALS) as recording:
        monkeypatch.setattr(recording.outputs.logs[0], "write", FailingOnce(recording.outputs.logs[0].write))
        with pytest.raises(OSError, match="No space left"):
            recording.run(8)
        assert dynamics.num_steps == 3
        assert recording.run(8, interrupted=lambda: dynamics.num_steps >= 6) == 4
        assert dynamics.num_steps == 4
        assert recording.run(12) == 16
    assert contents(other) == contents(prefix)


def test_steps_outside_of_a_recording_are_an_error(make, prefix):
    dynamics = make()
    with Recording.begin(dynamics, prefix, **INTERVALS) as recording:
        recording.run(4)
        dynamics.run(6)
        with pytest.raises(
            ValueError, match=r"step 8 is not recorded, but the dynamics is at step 10: during a Recording"
        ):
            recording.run(4)


def test_only_one_process_records_to_a_prefix(make, prefix):
    with Recording.begin(make(), prefix, **INTERVALS) as recording:
        recording.run(4)
        for again in (Recording.resume, Recording.begin):
            with pytest.raises(BlockingIOError, match=f"process {os.getpid()} on .* holds '{prefix}'"):
                again(make(), prefix, **INTERVALS)
        recording.run(4)
    with pytest.raises(FileExistsError):
        Recording.begin(make(), prefix, **INTERVALS)
    with Recording.resume(make(), prefix, **INTERVALS) as recording:
        assert recording.saved_step == 8
    assert not os.path.exists(f"{prefix}.lock")


@pytest.mark.gpu
def test_on_a_gpu_nothing_is_lost_after_a_failed_write_and_an_interruption(
    make_potential, ethanol, prefix, tmp_path, monkeypatch
):
    potential, systems = make_potential(dtype=torch.float32, **TINY).cuda(), [System.from_ase(ethanol)] * 2
    record(Dynamics(potential, systems, seed=3), prefix, 200)
    other = str(tmp_path / "other")
    with Recording.begin(Dynamics(potential, systems, seed=3), other, **INTERVALS) as recording:
        monkeypatch.setattr(
            recording.outputs.trajectories[1]._file, "write", FailingOnce(recording.outputs.trajectories[1]._file.write)
        )
        with pytest.raises(OSError, match="No space left"):
            recording.run(100)
        recording.run(100, interrupted=lambda: recording.outputs.rows[0].step >= 30)
        assert recording.dynamics.num_steps < 100
        recording.run(200 - recording.dynamics.num_steps)
    assert contents(other) == contents(prefix)


def test_frames_of_an_earlier_version_are_not_rotated_which_is_said(make_potential, crystal, tmp_path):
    dynamics = Dynamics(make_potential(**TINY), System.from_ase(crystal), timestep=0.5)
    prefix = str(tmp_path / "run")
    with Recording.begin(dynamics, prefix, **INTERVALS) as recording:
        recording.run(4)
    files = RunFiles(prefix, 1)
    settings = files.read_settings()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "trajectories hold .* in the xy plane$")
        Recording.resume(dynamics, prefix, **INTERVALS).close()
    files.write_settings({name: value for name, value in settings.items() if name != "cells in Å"})
    with (
        pytest.warns(UserWarning, match="did not write cells in Å"),
        pytest.warns(UserWarning, match="from here on; those that an earlier version wrote are not$"),
    ):
        Recording.resume(dynamics, prefix, **INTERVALS).close()
