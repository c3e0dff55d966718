"""Interrupted and failed runs of `torchmdx md`, and restarts."""

import errno
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import forked_programs
import numpy as np
import pytest
from dcd import read_dcd
from md_runs import DYNAMICS, SAME_SEED, assert_refused, assert_same_run, md

pytest.importorskip("openmm", reason="needs OpenMM: pip install 'torchmdx[openmm]'")

from torchmdx.commands.md_openmm import recorder as recorder_module
from torchmdx.commands.md_openmm.recorder import Recorder
from torchmdx.commands.md_openmm.simulation import Simulation
from torchmdx.dynamics import trajectory
from torchmdx.dynamics.log import LogRow, read_log
from torchmdx.dynamics.run import outputs
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.results import NonFiniteError


@pytest.mark.parametrize(("ensemble", "further"), [("nve", []), ("nvt", []), ("nve", ["--hydrogen-mass", 3])])
def test_a_restart_reproduces_the_uninterrupted_run(capsys, model, ethanol_file, unplotted, ensemble, further):
    options = ["--ensemble", ensemble, *DYNAMICS, *further]
    assert md(ethanol_file, model, "whole", *options, "--steps", 30) == 0
    assert md(ethanol_file, model, "parts", *options, "--steps", 13) == 0
    assert read_log(Path("parts.log"))["step"][-1] == 12
    assert md(ethanol_file, model, "parts", *options, "--steps", 30, "--restart") == 0
    assert "continuing from step 13" in capsys.readouterr().out
    assert_same_run("whole", "parts")


def test_a_restart_on_another_machine_uses_the_portable_state(capsys, model, ethanol_file, unplotted):
    options = ["--ensemble", "nve", *DYNAMICS]
    assert md(ethanol_file, model, "whole", *options, "--steps", 30) == 0
    assert md(ethanol_file, model, "parts", *options, "--steps", 13) == 0
    assert md(ethanol_file, model, "parts", *options, "--steps", 20, "--restart", "--platform", "CPU") == 0
    assert "restored from parts.xml instead of parts.chk: " in capsys.readouterr().out
    os.remove("parts.chk")
    assert md(ethanol_file, model, "parts", *options, "--steps", 30, "--restart") == 0
    assert "restored from parts.xml instead of parts.chk: it is missing" in capsys.readouterr().out
    whole, parts = read_dcd(Path("whole.dcd")), read_dcd(Path("parts.dcd"))
    np.testing.assert_allclose(parts["frames"], whole["frames"], atol=1e-5)
    assert list(read_log(Path("parts.log"))["step"]) == list(read_log(Path("whole.log"))["step"])


def test_npt_restarts_with_its_box(model, salt_file, unplotted):
    options = ["--ensemble", "npt", "--pressure", 1e5, "--timestep", 1, "--log-every", 1, *SAME_SEED]
    assert md(salt_file, model, "run", *options, "--steps", 80) == 0
    before = read_log(Path("run.log"))["volume_A3"]
    assert before[-1] != before[0]
    assert md(salt_file, model, "run", *options, "--steps", 81, "--restart") == 0
    after = read_log(Path("run.log"))["volume_A3"]
    np.testing.assert_array_equal(after[:81], before)
    assert after[81] == before[80]


def die_at(monkeypatch, step, error):
    """Makes the run fail after it has recorded a step, as if the process had died."""
    record = Recorder.record

    def recorded(self):
        record(self)
        if self.simulation.current_step >= step:
            raise error

    monkeypatch.setattr(Recorder, "record", recorded)


def test_files_ahead_of_the_checkpoint_are_truncated(monkeypatch, model, ethanol_file, unplotted):
    options = ["--ensemble", "nve", *DYNAMICS, "--steps", 30, "--checkpoint-every", 10]
    assert md(ethanol_file, model, "whole", *options) == 0
    with monkeypatch.context() as patch:
        die_at(patch, 18, KeyError("as if killed"))
        with pytest.raises(KeyError):
            md(ethanol_file, model, "parts", *options)
    assert len(read_dcd(Path("parts.dcd"))["frames"]) == 5
    assert list(read_log(Path("parts.log"))["step"]) == [0, 3, 6, 9, 12, 15, 18]
    assert not os.path.exists("parts.final.xyz")
    with open("parts.dcd", "ab") as file:  # the kill may have come in the middle of a write
        file.write(b"half a frame")
    with open("parts.log", "a") as file:
        file.write("21,0.0")
    assert md(ethanol_file, model, "parts", *options, "--restart") == 0
    assert_same_run("whole", "parts")


def test_checkpoints_at_wall_clock_intervals(monkeypatch, model, ethanol_file, unplotted):
    monkeypatch.setattr(outputs, "CHECKPOINT_SECONDS", 0.0)
    die_at(monkeypatch, 8, KeyError("as if killed"))
    with pytest.raises(KeyError):
        md(ethanol_file, model, "run", *DYNAMICS, "--steps", 20)
    assert 'stepCount="8"' in Path("run.xml").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_run_with_a_checkpoint(capsys, monkeypatch, model, ethanol_file, unplotted, number):
    options = ["--ensemble", "nvt", *DYNAMICS, "--steps", 30]
    assert md(ethanol_file, model, "whole", *options) == 0
    before = signal.getsignal(number)
    record = Recorder.record

    def recorded(self):
        record(self)
        if self.simulation.current_step == 12:
            signal.raise_signal(number)

    monkeypatch.setattr(Recorder, "record", recorded)
    assert md(ethanol_file, model, "parts", *options) == (75 if number == signal.SIGTERM else 130)
    error = capsys.readouterr().err
    assert f"stopped by {number.name} at step 12 of 30; the same command with --restart continues from there" in error
    assert signal.getsignal(number) is before
    monkeypatch.setattr(Recorder, "record", record)
    assert md(ethanol_file, model, "parts", *options, "--restart") == 0
    assert_same_run("whole", "parts")


def fail_after(monkeypatch, evaluations):
    evaluate, calls = CapturedStep.__call__, []

    def failing(self, *arguments, **options):
        calls.append(1)
        if len(calls) > evaluations:
            raise NonFiniteError("evaluation 99: positions, energy or forces of 2 atoms are not finite, atom 4")
        return evaluate(self, *arguments, **options)

    monkeypatch.setattr(CapturedStep, "__call__", failing)


def test_non_finite_forces_leave_the_last_valid_state(capsys, monkeypatch, model, ethanol_file, unplotted):
    monkeypatch.setattr(recorder_module, "GOOD_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        fail_after(patch, 20)
        status = md(ethanol_file, model, "run", *DYNAMICS, "--steps", 500)
    words = [
        "forces of 2 atoms are not finite, atom 4",
        "the last valid state, of step ",
        "was saved to run.chk and run.xml",
    ]
    error = capsys.readouterr().err
    assert status == 2
    assert all(word in error for word in words), error
    failed = int(error.split("torchmdx: error: step ")[1].split(":")[0])
    good = int(error.split("of step ")[1].split(",")[0])
    assert 0 < good <= failed < 25
    assert failed - good <= 3
    assert len(read_dcd(Path("run.dcd"))["frames"]) == good // 4 + 1
    assert read_log(Path("run.log"))["step"][-1] == good // 3 * 3
    assert md(ethanol_file, model, "run", *DYNAMICS, "--steps", 30, "--restart") == 0
    assert f"continuing from step {good}" in capsys.readouterr().out


@pytest.mark.filterwarnings("always:a timestep of")
def test_an_unstable_simulation_is_reported(capsys, model, ethanol_file, unplotted):
    """With such long steps atoms move in straight lines, and all values stay finite."""
    options = ["--ensemble", "nve", "--timestep", 10000, "--steps", 500, "--log-every", 2, *SAME_SEED]
    status = md(ethanol_file, model, "run", *options)
    assert_refused(capsys, status, "step 2: the simulation is unstable: temperature ", " K, fastest atom ")
    assert list(read_log(Path("run.log"))["step"]) == [0]
    assert len(read_dcd(Path("run.dcd"))["frames"]) == 1


def test_a_non_finite_state_is_never_saved(capsys, monkeypatch, model, ethanol_file, unplotted):
    step = Simulation.step

    def spoiled(self, num_steps):
        step(self, num_steps)
        if self.current_step >= 2:
            positions = self.context.getState(positions=True).getPositions(asNumpy=True)._value
            positions[[3, 7]] = np.nan
            self.context.setPositions(positions)

    monkeypatch.setattr(Simulation, "step", spoiled)
    status = md(ethanol_file, model, "run", "--steps", 2, *DYNAMICS)
    assert_refused(capsys, status, "step 2: positions of atoms 3, 7 are not finite", "last valid state, of step 0,")
    monkeypatch.setattr(Simulation, "step", step)
    assert md(ethanol_file, model, "run", *DYNAMICS, "--steps", 30, "--restart") == 0


def test_a_failure_at_the_first_step_leaves_no_files(capsys, monkeypatch, model, ethanol_file):
    fail_after(monkeypatch, 0)
    status = md(ethanol_file, model, "run", "--steps", 5)
    assert_refused(capsys, status, "step 0: evaluation 99: positions, energy or forces of 2 atoms are not finite")
    assert not [name for name in os.listdir() if name.startswith("run.")]


@pytest.mark.parametrize("kind", ["dcd", "log"])
def test_a_full_disk_is_explained_and_the_run_goes_on_later(capsys, monkeypatch, model, ethanol_file, unplotted, kind):
    options = ["--ensemble", "nve", *DYNAMICS, "--steps", 20, "--checkpoint-every", 4]
    assert md(ethanol_file, model, "whole", *options) == 0
    module, name = {"dcd": (trajectory, "write_all"), "log": (LogRow, "text")}[kind]
    original, calls = getattr(module, name), []

    def full(*arguments):
        calls.append(0)
        if len(calls) > {"dcd": 4, "log": 3}[kind]:  # of a trajectory the first is its header
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*arguments)

    monkeypatch.setattr(module, name, full)
    status = md(ethanol_file, model, "parts", *options)
    assert_refused(
        capsys,
        status,
        f"'parts.{kind}' could not be written (No space left on device); when it can be, the same command with ",
        "with --restart continues from step 8",
    )
    monkeypatch.setattr(module, name, original)
    assert md(ethanol_file, model, "parts", *options, "--restart") == 0
    assert_same_run("whole", "parts")


SCRIPT = Path(__file__).parents[3] / "examples" / "cluster" / "md.slurm"
# srun sends SIGTERM once, after the first rows of the log, as Slurm does before the end of a job.
TOOLS = {
    "scontrol": 'echo "$@" >> requeued; exec bash "$SCRIPT" "$@WORDS"',
    "srun": """
echo "$@" >> started
"$@" & process=$!
if [ ! -f told ]; then
    until [ "$(wc -l < long.log 2>/dev/null || echo 0)" -gt 3 ]; do kill -0 $process || break; sleep 0.02; done
    touch told; kill -TERM $process
fi
wait $process""",
}


def write_tools(folder: Path, **more: str) -> None:
    """The commands, torchmdx as a fork of a program that has imported it."""
    program = f'exec {shlex.join(forked_programs.command())} "$@"'
    for name, text in {**TOOLS, **more, "torchmdx": program}.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)


@pytest.mark.nightly_for("torchmdx")
@pytest.mark.parametrize("engine", ["openmm", "torchmdx"])
def test_a_job_requeues_itself_until_the_run_is_complete(model, ethanol_file, tmp_path, monkeypatch, engine):
    """With stand-ins for Slurm's commands: scontrol runs the script again."""
    monkeypatch.chdir(tmp_path)
    options = ["--engine", engine, "--ensemble", "nvt", "--steps", 4000, "--log-every", 20, "--save-every", 100]
    options += ["--device", "cpu", "--model", model, "--no-page", *SAME_SEED]
    words = [str(word) for word in (ethanol_file, "long", *options)]
    write_tools(tmp_path, scontrol=TOOLS["scontrol"].replace('"$@WORDS"', shlex.join(words)))
    variables = os.environ | {
        "SLURM_JOB_ID": "7", "SCRIPT": str(SCRIPT), "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(SCRIPT.parents[2]), *sys.path]),
    }  # fmt: skip
    done = subprocess.run(
        ["bash", str(SCRIPT), *words], env=variables, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert Path("requeued").read_text() == "requeue 7\n"
    first, second = Path("started").read_text().splitlines()
    assert "--restart" not in first
    assert "--restart" in second
    assert "stopped by SIGTERM at step" in done.stderr
    steps = [int(row.split(",")[0]) for row in Path("long.log").read_text().splitlines()[1:]]
    assert steps[-1] == 4000
    assert steps == sorted(set(steps))


def test_a_job_with_an_error_is_not_requeued(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tools(tmp_path)
    variables = os.environ | {
        "SLURM_JOB_ID": "7", "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    Path("told").touch()
    words = ["bash", str(SCRIPT), "missing.pdb", "long", "--steps", "10"]
    done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "missing.pdb" in done.stderr
    assert not Path("requeued").exists()
