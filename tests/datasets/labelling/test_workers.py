"""Workers that crash, hang and talk. Spawning one takes a second or two, so each test looks at several things."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import toys

from torchmdx.datasets.labelling.calculators import Choice
from torchmdx.datasets.labelling.geometry import UnlabelledStructure
from torchmdx.datasets.labelling.work import FrameToLabel, LabelWork, conditions
from torchmdx.datasets.labelling.workers import Task, Workers

pytestmark = pytest.mark.usefixtures("quick_workers")  # but where a parent of its own spawns them


def crew(tmp_path, num_workers=1, timeout=None, stopped=lambda: False, name="toys:Springs", **options) -> Workers:
    options |= {"log": str(tmp_path / "evaluations")} if name == "toys:Springs" else {}
    work = LabelWork(Choice(name, options), tmp_path / "files")
    return Workers(work, num_workers, timeout=timeout, log=tmp_path / "log", stopped=stopped)


def tasks(count) -> list[Task]:
    made = enumerate(toys.frames(count))
    return [Task(number, FrameToLabel((0, number), UnlabelledStructure.from_ase(atoms))) for number, atoms in made]


def run(workers, count) -> list:
    with workers:
        return [outcome for outcome in workers.run(tasks(count)) if outcome is not None]


def outcomes(workers, count) -> dict:
    found = run(workers, count)
    assert sorted(outcome.name for outcome in found) == list(range(count))
    return {outcome.name: outcome for outcome in found}


def evaluations(tmp_path) -> list[list[str]]:
    """Frame, process and threads of every evaluation begun."""
    return [line.split() for line in (tmp_path / "evaluations").read_text().splitlines()]


def is_running(pid) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds=20.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


@pytest.mark.nightly
def test_every_fault_is_an_outcome_and_the_others_are_done(tmp_path):
    found = outcomes(crew(tmp_path, fail=[1], crash=[2], leave=[4], nan=[5]), 7)
    errors = {name: outcome.error for name, outcome in found.items() if outcome.error}
    assert errors == {
        1: "RuntimeError: SCF not converged",
        2: "the worker died (exit status 3), 2 times",
        4: "SystemExit: the licence server is down",
        5: "ValueError: forces must be finite, got nan",
    }
    for number in (0, 3, 6):
        np.testing.assert_allclose(found[number].value.forces, -2 * toys.frames(7)[number].positions)
    done = evaluations(tmp_path)
    assert [int(line[0]) for line in done] == [0, 1, 2, 2, 3, 4, 5, 6]
    assert len({line[1] for line in done}) == 3  # a process more for each of the two deaths
    assert {line[2] for line in done} == {"1"}
    assert not any(is_running(line[1]) for line in done)


@pytest.mark.nightly
def test_a_worker_that_dies_once_costs_nothing_and_its_words_are_kept(tmp_path):
    (tmp_path / "once").mkdir()
    found = outcomes(crew(tmp_path, kill=[1], talk=[2], once=str(tmp_path / "once")), 3)
    assert [outcome.error for outcome in found.values()] == [None] * 3
    log = (tmp_path / "log").read_text()
    assert "words of a library" in log
    assert "Fatal Python error: Segmentation fault" in log


@pytest.mark.nightly
def test_a_worker_that_hangs_is_ended_and_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    found = outcomes(crew(tmp_path, hang=[1], timeout=0.5), 3)
    assert {name: outcome.error for name, outcome in found.items()} == {0: None, 1: "no result within 0.5 s", 2: None}
    done = evaluations(tmp_path)
    assert not any(is_running(line[1]) for line in done)
    assert {line[2] for line in done} == {"1"}  # threads of the workers; the caller's are left alone
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in os.environ


def test_several_workers_share_the_work(tmp_path):
    outcomes(crew(tmp_path, 2, delay=0.3), 8)
    assert len({line[1] for line in evaluations(tmp_path)}) == 2


@pytest.mark.nightly
def test_a_wish_to_stop_is_heard_at_once_and_nothing_runs_on(tmp_path):
    def stopped():
        return (tmp_path / "evaluations").exists()

    began = time.monotonic()
    assert run(crew(tmp_path, stopped=stopped, hang=[0]), 2) == []
    assert time.monotonic() - began < 100
    assert not any(is_running(line[1]) for line in evaluations(tmp_path))


@pytest.mark.nightly
def test_a_calculator_that_cannot_be_made_ends_the_run(tmp_path):
    words = "calculator toys:not_made could not be made with options {}: RuntimeError: no parameters here"
    with pytest.raises(ValueError, match=words):
        run(crew(tmp_path, name="toys:not_made"), 2)


@pytest.mark.nightly
def test_workers_that_all_die_at_the_start_end_the_run(tmp_path):
    with pytest.raises(
        ChildProcessError, match=r"workers die before they are ready \(exit status 9\); see what they printed"
    ):
        run(crew(tmp_path, 3, name="toys:dies"), 5)


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
def test_workers_end_with_their_parent(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import test_workers as t, pathlib\n"
        "if __name__ == '__main__':\n"
        f"    t.run(t.crew(pathlib.Path({str(tmp_path)!r}), hang=[0]), 1)\n"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    parent = subprocess.Popen([sys.executable, script], env={**os.environ, "PYTHONPATH": path})
    wait_until(lambda: (tmp_path / "evaluations").exists())
    worker = evaluations(tmp_path)[0][1]
    assert is_running(worker)
    parent.kill()
    parent.wait()
    wait_until(lambda: not is_running(worker))


def test_a_process_with_other_settings_or_versions_is_refused(tmp_path):
    choice = Choice("toys:Springs", {"delay": 0.0})
    agreed = conditions(choice)
    LabelWork(choice, tmp_path, agreed=agreed).prepare(0)
    wrong = {**agreed, "version of torchmdx": "0.0.1"}
    with pytest.raises(ValueError, match="same settings and versions, got version of torchmdx .*, not 0.0.1"):
        LabelWork(choice, tmp_path, agreed=wrong).prepare(0)
