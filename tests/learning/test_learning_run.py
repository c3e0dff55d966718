"""Whole runs: what they leave, that they go on after a kill with the same result, and what they refuse."""

import os
import signal
import subprocess
import time
from pathlib import Path

import forked_programs
import pytest
import torch
from safetensors import safe_open

from tests.learning.conftest import settings, start_file
from torchmdx import load
from torchmdx.learning import run as running
from torchmdx.learning import stages
from torchmdx.learning.run import learn
from torchmdx.models.ensemble import Ensemble
from torchmdx.runtime.interrupt import Interrupts
from torchmdx.runtime.output_lock import OutputLock


def same_results(one, other):
    """Names of files of results that differ."""
    found = []
    for path in sorted(one.rglob("*")):
        match = other / path.relative_to(one)
        if path.suffix in (".extxyz", ".npz") or path.name == "map.json":
            if not match.exists() or path.read_bytes() != match.read_bytes():
                found.append(str(path))
        elif path.name == "potential.safetensors" and not same_weights(path, match):
            found.append(str(path))
    return found


def same_weights(one, other):
    """Whether two files have the same tensors; their metadata are in any order."""
    with safe_open(one, "pt") as first, safe_open(other, "pt") as second:
        names = set(first.keys())
        return names == set(second.keys()) and all(
            torch.equal(first.get_tensor(name), second.get_tensor(name)) for name in names
        )


def test_a_run_leaves_a_folder_for_each_stage_and_an_ensemble(finished):
    _config, folder, said = finished
    done = {str(path.parent.relative_to(folder)) for path in folder.rglob("done.json")}
    assert done == {
        *(f"round-000/{stage}" for stage in ("start", "label", "train")),
        *(f"round-00{k}/{stage}" for k in (1, 2) for stage in ("explore", "select", "label", "train")),
    }
    found = load(folder / "potential.safetensors")
    assert isinstance(found, Ensemble)
    assert len(found) == 2
    assert same_weights(folder / "potential.safetensors", folder / "round-002" / "train" / "potential.safetensors")
    assert said[-1] == (
        "not converged after 2 rounds and 10 labels: the budget of 2 rounds is spent; no target of uncertainty or "
        f"error was set; potential: {folder / 'potential.safetensors'}"
    )


def test_the_same_call_says_the_end_again_and_does_nothing(finished, monkeypatch):
    config, folder, said = finished
    for name in ("label", "train"):
        monkeypatch.setattr(stages, name, None)
    again = []
    assert learn(config, say=again.append) == 0
    assert again == [f"continuing in {folder}", "round 1", "round 2", said[-1]]


class KilledError(BaseException):
    """Stands for a kill: nothing catches it."""


@pytest.fixture
def place(tmp_path, labelling_here):
    start_file(tmp_path / "start.extxyz")
    return tmp_path


@pytest.mark.nightly_for("label_frames-after")
@pytest.mark.parametrize(
    ("stage", "when"),
    [
        ("explore", "before"),
        pytest.param("select", "after", marks=pytest.mark.nightly),
        ("label_frames", "after"),
        pytest.param("train_potential", "before", marks=pytest.mark.nightly),
    ],
)
def test_a_run_that_ends_between_stages_goes_on_with_the_same_results(place, monkeypatch, finished, stage, when):
    whole, calls = getattr(running, stage), []

    def killing(*arguments):
        calls.append(arguments)
        due = len(calls) == (1 if stage in ("explore", "select") else 2)
        if due and when == "before":
            raise KilledError
        result = whole(*arguments)
        if due:
            raise KilledError
        return result

    config = settings(place)
    with monkeypatch.context() as patch:
        patch.setattr(running, stage, killing)
        with pytest.raises(KilledError):
            learn(config, say=lambda text: None)
    assert learn(config, say=lambda text: None) == 0
    for name in ("round-001/select/map.json", "round-001/explore/batch-000.npz", "round-001/select/chosen.extxyz"):
        assert (place / "run" / name).read_bytes() == (finished[1] / name).read_bytes()
    potential = "round-001/train/potential.safetensors"
    assert same_weights(place / "run" / potential, finished[1] / potential)


@pytest.mark.nightly
def test_other_rounds_may_be_asked_for_later(place, finished):
    assert learn(settings(place), say=lambda text: None) == 0
    said = []
    assert learn(settings(place, stop={"rounds": 2}), say=said.append) == 0
    assert said[-1].startswith("not converged after 2 rounds and 10 labels")
    potential = "round-002/train/potential.safetensors"
    assert same_weights(place / "run" / potential, finished[1] / potential)


def test_a_signal_stops_a_run_which_goes_on(place):
    config = settings(place)
    with Interrupts() as interrupts:
        said = []

        def say(text):
            said.append(text)
            if text.startswith("label"):
                os.kill(os.getpid(), signal.SIGTERM)

        assert learn(config, interrupts, say) == 128 + signal.SIGTERM
    assert said[-1] == f"stopped; the same command continues in {place / 'run'}"
    assert not (place / "run" / "round-000" / "train").exists()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"explore": {"steps": 50}}, r"holds a run with explore\.steps: 40, got 50"),
        ({"label": {"options": {"asap_cutoff": True}}}, r"label\.options: \{\}"),
        ({"train": {"start": "warm"}}, r"train\.start: 'anew', got 'warm'"),
    ],
)
def test_other_settings_than_those_of_the_run_are_refused(finished, changes, text):
    config, _folder, _ = finished
    values = config.plain()
    for section, keys in changes.items():
        values[section] |= keys
    with pytest.raises(FileExistsError, match=text):
        learn(type(config).model_validate(values), say=lambda text: None)


def test_two_runs_in_one_folder_are_refused(finished):
    config, folder, _ = finished
    with OutputLock(folder), pytest.raises(BlockingIOError, match="only one run at a time may write an output"):
        learn(config, say=lambda text: None)


@pytest.mark.nightly
def test_changed_files_are_refused(place):
    config = settings(place)
    assert learn(config, say=lambda text: None) == 0
    labelled = place / "run" / "round-001" / "label" / "labelled.extxyz"
    labelled.write_text(labelled.read_text().replace("energy=", "energy=1", 1))
    with pytest.raises(ValueError, match=r"labelled\.extxyz' must be as its stage wrote it"):
        learn(config, say=lambda text: None)
    labelled.write_text(labelled.read_text().replace("energy=1", "energy=", 1))
    (place / "start.extxyz").write_text((place / "start.extxyz").read_text().replace("Au", "Ag"))
    with pytest.raises(FileExistsError, match=r"was made with another content of .*start\.extxyz"):
        learn(config, say=lambda text: None)


def test_a_target_of_uncertainty_ends_a_run_before_more_labels(place):
    said = []
    assert learn(settings(place, stop={"rounds": 5, "uncertainty": 1e3}), say=said.append) == 0
    assert said[-1].startswith("converged after 1 round and 4 labels: uncertainty ")
    assert not (place / "run" / "round-001" / "label").exists()


def test_labels_that_all_fail_end_the_run_with_their_reason(place, monkeypatch):
    def failing(self, structure):
        raise RuntimeError("the electrons do not converge")

    monkeypatch.setattr("tests.learning.conftest.Labeller.labels", failing)
    with pytest.raises(ValueError, match="must give labels, got none for 4 frames: .*the electrons do not converge"):
        learn(settings(place), say=lambda text: None)


@pytest.mark.nightly
def test_a_run_with_the_uncertainty_of_a_last_layer(place):
    said = []
    config = settings(place, start={"count": 14}, uncertainty={"kind": "last_layer"}, explore={"steps": 20})
    assert learn(config, say=said.append) == 0
    found = load(place / "run" / "potential.safetensors")
    assert not isinstance(found, Ensemble)
    assert found.uncertainty is not None
    explored = next(line for line in said if line.startswith("explore"))
    assert " eV (median)" in explored
    assert "eV/Å" not in explored


POINTS = (
    "round-000/label/labelled.extxyz.journal",
    "round-000/train/training/member-0/last.safetensors",
    "round-001/explore/batch-000.part.npz",
    "round-001/select/chosen.extxyz",
    "round-001/train/training/ensemble.safetensors",
)


@pytest.mark.nightly
def test_kill_9_at_any_moment_changes_nothing(tmp_path):
    """Processes that are killed as soon as a file appears: inside stages, and between them."""
    yaml = Path(__file__).with_name("small.yaml").read_text()
    command = [*forked_programs.command(), "learn", "learn.yaml"]
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        start_file(tmp_path / name / "start.extxyz")
        (tmp_path / name / "learn.yaml").write_text(yaml)
    whole = subprocess.run(command, cwd=tmp_path / "whole", capture_output=True, text=True, check=True)
    for point in POINTS:
        path = tmp_path / "killed" / "run" / point
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(command, cwd=tmp_path / "killed", stdout=quiet, stderr=quiet, start_new_session=True)
        while process.poll() is None and not path.exists():
            time.sleep(0.001)
        assert process.poll() is None, f"nothing was killed at {point}"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    killed = subprocess.run(command, cwd=tmp_path / "killed", capture_output=True, text=True, check=True)
    assert killed.stdout.splitlines()[-1] == whole.stdout.splitlines()[-1]
    assert same_results(tmp_path / "whole" / "run", tmp_path / "killed" / "run") == []
    leftovers = {path.name for path in (tmp_path / "killed").rglob("*.part*")}
    assert not leftovers
