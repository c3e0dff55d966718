"""Training runs from the command line: accuracy, kills, resumed runs, fine-tuning, ensembles, invalid input."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import forked_programs
import made_up
import numpy as np
import pytest
import torch

import torchmdx
import torchmdx.training.run as training_run
from torchmdx.commands.cli import main
from torchmdx.datasets.store import Store
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.report.history import read_table
from torchmdx.runtime.output_lock import OutputLock
from torchmdx.training.config import Config
from torchmdx.training.config_file import read_config
from torchmdx.training.state import read_state


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "st"
    made_up.store(path, 120)
    return path


@pytest.fixture
def config(tmp_path, data):
    return made_up.config_file(tmp_path, data)


def run(config, directory, *changes):
    return main(["train", str(config), "--output.directory", str(directory), *changes])


def same_weights(one, other):
    a, b = torchmdx.load(one).state_dict(), torchmdx.load(other).state_dict()
    return all(torch.equal(a[name], b[name]) for name in a)


def start(config, directory, *changes):
    command = [*forked_programs.command(), "train", str(config), "--output.directory", str(directory)]
    return subprocess.Popen(
        [*command, *changes], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ.copy()
    )


def wait_for_rows(path, rows, process):
    end = time.monotonic() + 60
    while not path.exists() or len(path.read_text().splitlines()) <= rows:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.nightly
def test_training_reaches_its_error_and_the_potential_loads(config, data, tmp_path, capsys):
    assert run(config, tmp_path / "run", "--training.epochs", "30", "--optimizer.learning_rate", "0.01") == 0
    assert "best.safetensors" in capsys.readouterr().out
    epochs = read_table(tmp_path / "run" / "epochs.csv")
    assert epochs["validation_energy"][-1] < 25 < epochs["validation_energy"][0]
    assert epochs["validation_forces"][-1] < 80 < 200 < epochs["validation_forces"][0]
    names = {"config.yaml", "split.json", "environment.json", "steps.csv", "best.safetensors", "last.safetensors"}
    assert names <= {path.name for path in (tmp_path / "run").iterdir()}
    assert torchmdx.load(tmp_path / "run" / "best.safetensors").card.elements == (1, 6, 8)
    assert not list((tmp_path / "run").glob(".*part"))
    assert read_config(tmp_path / "run" / "config.yaml").training.epochs == 30
    # What validation said of the last epoch is what the saved potential does on those frames.
    split = json.loads((tmp_path / "run" / "split.json").read_text())
    store, potential = made_up.Store.open(data), torchmdx.load(tmp_path / "run" / "last.safetensors")
    energy, forces = [], []
    for index in split["validation"]:
        frame = store.gather([index])
        result = evaluate(potential, frame.system(0))
        energy.append(abs(float(result.energy[0]) - frame.energy[0]) / frame.counts[0])
        forces.append(np.abs(result.forces.numpy() - frame.forces))
    assert epochs["validation_energy"][-1] == pytest.approx(1000 * np.mean(energy), rel=1e-3)
    assert epochs["validation_forces"][-1] == pytest.approx(1000 * np.concatenate(forces).mean(), rel=1e-3)


@pytest.mark.nightly
def test_the_seed_determines_the_result(config, tmp_path):
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        assert run(config, tmp_path / name, "--training.seed", seed, "--training.epochs", "2") == 0
    assert (tmp_path / "a" / "steps.csv").read_text() == (tmp_path / "b" / "steps.csv").read_text()
    assert same_weights(tmp_path / "a" / "last.safetensors", tmp_path / "b" / "last.safetensors")
    assert (tmp_path / "a" / "steps.csv").read_text() != (tmp_path / "c" / "steps.csv").read_text()


SIX_EPOCHS = ["--training.epochs", "6", "--schedule.name", "plateau", "--schedule.plateau_patience", "1"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, data):
    """The directory of an uninterrupted run of SIX_EPOCHS."""
    folder = tmp_path_factory.mktemp("whole")
    made_up.config_file(folder, data)
    assert run(folder / "c.yaml", folder / "run", *SIX_EPOCHS) == 0
    return folder / "run"


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_resumed_run_matches_an_uninterrupted_one(config, whole, tmp_path, number):
    directory = tmp_path / "stopped"
    process = start(config, directory, *SIX_EPOCHS)
    wait_for_rows(directory / "steps.csv", 30, process)  # in the third epoch of twelve steps
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    if number == signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 128 + number
        assert "continue with --resume" in said
    _, info = read_state(directory / "state.safetensors")
    assert info["epoch"] < 6
    assert run(config, directory, *SIX_EPOCHS, "--resume") == 0
    for name in ("steps.csv", "epochs.csv"):
        assert (directory / name).read_bytes() == (whole / name).read_bytes()
    for name in ("best.safetensors", "last.safetensors"):
        assert same_weights(directory / name, whole / name)


def test_a_full_disk_keeps_the_previous_state(config, tmp_path, monkeypatch, capsys):
    assert run(config, tmp_path / "run", "--training.epochs", "1") == 0
    before = (tmp_path / "run" / "state.safetensors").read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert run(config, tmp_path / "run", "--training.epochs", "2", "--resume") == 2
    monkeypatch.undo()
    assert "No space left on device" in capsys.readouterr().err
    assert (tmp_path / "run" / "state.safetensors").read_bytes() == before
    assert not list((tmp_path / "run").glob(".*part"))
    assert run(config, tmp_path / "run", "--training.epochs", "2", "--resume") == 0


def test_fine_tuning_starts_from_the_checkpoint_and_keeps_frozen_layers(config, tmp_path):
    assert run(config, tmp_path / "first", "--training.epochs", "5", "--optimizer.learning_rate", "0.01") == 0
    first = tmp_path / "first" / "last.safetensors"
    changes = ["--finetune.checkpoint", str(first), "--training.epochs", "2", "--model.num_channels", "16"]
    frozen = "[network.embedding, network.layers.0.filters]"
    assert run(config, tmp_path / "second", *changes, "--finetune.freeze", frozen) == 0
    old, new = torchmdx.load(first), torchmdx.load(tmp_path / "second" / "last.safetensors")
    assert new.config == old.config
    before, after = dict(old.named_parameters()), dict(new.named_parameters())
    kept = ("network.embedding.", "network.layers.0.filters.", "network.basis.")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert not [name for name in changed if name.startswith(kept)]
    assert {"head.layers.0.weight", "network.readout.weight"} & changed
    begun = read_table(tmp_path / "second" / "epochs.csv")["train_forces"][1]  # row 0 is the checkpoint
    scratch = read_table(tmp_path / "first" / "epochs.csv")["train_forces"][0]
    assert begun < 0.6 * scratch


@pytest.mark.nightly
def test_references_of_a_checkpoint_are_shifted_to_other_labels(config, tmp_path, capsys):
    assert run(config, tmp_path / "first", "--training.epochs", "3") == 0
    moved = made_up.store(
        tmp_path / "moved", 60, change=lambda k, f: replace(f, energy=f.energy + 7.0 * (f.atomic_numbers == 8).sum())
    )
    changes = ["--finetune.checkpoint", str(tmp_path / "first" / "last.safetensors"), "--data.path", str(moved.path)]
    changes += ["--training.epochs", "1", "--optimizer.learning_rate", "1e-9"]
    errors = {}
    for way in ("keep", "shift"):
        assert run(config, tmp_path / way, *changes, "--finetune.references", way) == 0
        errors[way] = read_table(tmp_path / way / "epochs.csv")["validation_energy"][0]
        said = " ".join(capsys.readouterr().err.split())
        assert ("the energies of the first batch differ from those of" in said) == (way == "keep")
        assert ("Set finetune.references: shift" in said) == (way == "keep")
    assert errors["shift"] < 250 < 1000 < errors["keep"]
    old, new = (torchmdx.load(tmp_path / k / "last.safetensors").reference_energies for k in ("first", "shift"))
    assert float(new[8] - old[8]) == pytest.approx(7.0, abs=0.5)


@pytest.mark.nightly
def test_an_ensemble_equals_runs_with_its_seeds(config, tmp_path):
    assert run(config, tmp_path / "all", "--training.ensemble", "2", "--training.epochs", "1") == 0
    assert run(config, tmp_path / "one", "--training.seed", "1", "--training.epochs", "1") == 0
    members = [tmp_path / "all" / f"member-{k}" for k in range(2)]
    assert same_weights(members[1] / "best.safetensors", tmp_path / "one" / "best.safetensors")
    assert not same_weights(members[0] / "best.safetensors", members[1] / "best.safetensors")
    ensemble = torchmdx.load(tmp_path / "all")  # the folder is one, as it is
    assert ensemble.names == tuple(str(member / "best.safetensors") for member in members)
    assert (members[0] / "split.json").read_bytes() == (members[1] / "split.json").read_bytes()


@pytest.mark.nightly
def test_an_ensemble_is_resumed_with_its_own_seeds_and_size(config, tmp_path, capsys):
    words = ["--training.ensemble", "2", "--training.seed", "3"]
    assert run(config, tmp_path / "all", *words, "--training.epochs", "1") == 0
    capsys.readouterr()
    refusals = {
        "training.seed was 3, got 4": ["--training.ensemble", "2", "--training.seed", "4"],
        "training.ensemble was 2, got 3": ["--training.ensemble", "3", "--training.seed", "3"],
        "training.ensemble was 2, got 1": ["--training.seed", "3"],
    }
    for said, changes in refusals.items():
        assert run(config, tmp_path / "all", *changes, "--training.epochs", "2", "--resume") == 2
        assert said in capsys.readouterr().err
        assert {path.name for path in (tmp_path / "all").iterdir()} == {"member-0", "member-1", "ensemble.safetensors"}
    assert run(config, tmp_path / "all", *words, "--training.epochs", "2", "--resume") == 0
    assert [len(read_table(tmp_path / "all" / f"member-{k}" / "epochs.csv")["epoch"]) for k in range(2)] == [2, 2]


def test_a_run_can_be_resumed_with_more_epochs_elsewhere_and_with_other_output(config, data, tmp_path):
    assert run(config, tmp_path / "run", "--training.epochs", "1") == 0
    moved = shutil.copytree(data, tmp_path / "moved")
    split = shutil.copy(tmp_path / "run" / "split.json", tmp_path / "split.json")
    changes = ["--training.epochs", "2", "--training.stop_after", "9", "--training.prefetch", "1"]
    changes += ["--output.log_every", "5", "--data.path", str(moved), "--data.split", str(split)]
    assert run(config, tmp_path / "run", *changes, "--resume") == 0
    assert read_state(tmp_path / "run" / "state.safetensors")[1]["epoch"] == 2


def test_errors_independent_of_data_are_raised_before_conversion(tmp_path, monkeypatch, capsys, config):
    (tmp_path / "water.xyz").write_text("3\n\nO 0 0 0.119\nH 0 0.763 -0.477\nH 0 -0.763 -0.477\n")
    monkeypatch.setitem(sys.modules, "wandb", None)
    refusals = {
        "training.seed must be greater than or equal to 0, got -1": ["--training.seed", "-1"],
        "data.seed must be greater than or equal to 0, got -1": ["--data.seed", "-1"],
        "data.references.1 must be a finite number, got nan": ["--data.references", "{1: .nan}"],
        "the logger 'wandb' is not installed": ["--output.loggers", "[csv, wandb]"],
        "finetune.freeze must name modules or weights of the potential": ["--finetune.freeze", "[nothing]"],
        "no checkpoint at 'none.safetensors'": ["--finetune.checkpoint", "none.safetensors"],
    }
    for said, changes in refusals.items():
        assert run(config, tmp_path / "run", "--data.path", str(tmp_path / "water.xyz"), *changes) == 2
        assert said in capsys.readouterr().err
        assert not (tmp_path / "run").exists()


@pytest.mark.nightly
def test_it_stops_when_validation_does_not_improve(config, tmp_path):
    changes = ["--training.epochs", "50", "--training.stop_after", "2", "--optimizer.learning_rate", "1e-12"]
    assert run(config, tmp_path / "run", *changes, "--optimizer.ema_decay", "0") == 0
    assert len(read_table(tmp_path / "run" / "epochs.csv")["epoch"]) < 20


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["--data.path", "nowhere"], "no data at 'nowhere'"),
        (["--data.path", "''"], "data.path must name a store"),
        (["--data.train", "0"], "train must be at least 1"),
        (["--data.train", "119"], "train must be at least 1 and the parts at most the 120 frames"),
        (["--loss.stress.weight", "1"], "loss.stress.weight must be 0 for data without such labels"),
        (["--model.max_z", "6"], "max_z must cover atomic number 8"),
        (
            ["--data.references", "{1: -13.6}"],
            "data.references must include every element of the data, got none for [6, 8]",
        ),
        (["--finetune.freeze", "[network.embeding]"], "did you mean 'network.embedding'?"),
        (["--finetune.freeze", "[network, head]"], "finetune.freeze must leave trainable weights"),
        (["--finetune.checkpoint", "none.safetensors"], "no checkpoint at 'none.safetensors'"),
        (["--training.stop_after", "3", "--data.validation", "0"], "training.stop_after: 3 needs validation frames"),
        (["--resume"], "nothing to resume: no state.safetensors"),
    ],
)
def test_invalid_input_is_reported_before_anything_is_written(config, tmp_path, capsys, changes, said):
    assert run(config, tmp_path / "run", *changes) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.nightly
def test_runs_with_different_settings_are_not_mixed(config, data, tmp_path, capsys):
    assert run(config, tmp_path / "run", "--training.epochs", "1") == 0

    def refused(said, *changes):
        assert run(config, tmp_path / "run", *changes) == 2
        assert re.search(said, capsys.readouterr().err)

    refused("already holds a training run: continue it with --resume, or choose another output.directory")
    refused("model.num_channels was 8, got 12", "--resume", "--model.num_channels", "12")
    refused("optimizer.learning_rate was 0.001, got 0.1", "--resume", "--optimizer.learning_rate", "0.1")
    refused("training.seed was 0, got 1", "--resume", "--training.seed", "1")
    refused("training.deterministic was False, got True", "--resume", "--training.deterministic", "true")
    refused("training.ensemble was 1, got 2", "--resume", "--training.ensemble", "2")
    several = "a run must be resumed with the same settings: data.seed was 0, got 2; training.batch_size was 8, got 4; "
    several += r"training.seed was 0, got 7; finetune.freeze was \[\], got \['head'\]"
    changes = ["--data.seed", "2", "--training.batch_size", "4", "--training.seed", "7", "--finetune.freeze", "[head]"]
    refused(several, "--resume", *changes)
    other = made_up.store(tmp_path / "other", 120, seed=9)
    refused("was made for other data than the store", "--resume", "--data.path", str(other.path))
    split = json.loads((tmp_path / "run" / "split.json").read_text())
    split["train"], split["test"] = split["train"][1:], [*split["test"], split["train"][0]]
    (tmp_path / "split.json").write_text(json.dumps(split))
    refused("was trained on other frames than those of", "--resume", "--data.split", str(tmp_path / "split.json"))
    (tmp_path / "run" / "state.safetensors").write_bytes(b"12345678{")
    refused("state.safetensors' is not readable", "--resume")


def test_a_non_finite_loss_reports_step_and_frames(tmp_path, capsys, config):
    def change(index, frame):
        if index == 3:
            frame.positions[1] = frame.positions[0]
        return frame

    made_up.store(tmp_path / "bad", 20, change=change)
    changes = ["--data.path", str(tmp_path / "bad"), "--data.validation", "0", "--data.test", "0"]
    assert run(config, tmp_path / "run", *changes, "--training.batch_size", "4") == 2
    said = capsys.readouterr().err
    assert re.search(
        r"loss and gradient must be finite, got loss nan.* in step \d+ with frames .*3 \(made.xyz:3\)", said
    )


def test_every_setting_is_read_somewhere():
    # An option nobody reads is one that does nothing.
    sources = "".join(
        path.read_text()
        for path in (torchmdx.__path__ and [*__import__("pathlib").Path(torchmdx.__path__[0]).glob("training/*.py")])
        if path.name not in ("config.py", "loss_section.py")
    )
    for section, field in Config.model_fields.items():
        for name in field.annotation.model_fields:
            if section not in ("model", "loss"):  # taken as a whole
                assert re.search(rf"\.{name}\b", sources), f"{section}.{name}"


def test_files_are_converted_once_in_the_directory_of_the_run(tmp_path, capsys):
    import ase.io
    from ase.build import molecule
    from ase.calculators.singlepoint import SinglePointCalculator

    frames = []
    for k in range(12):
        atoms = molecule("H2O")
        atoms.rattle(0.05, seed=k)
        atoms.calc = SinglePointCalculator(atoms, energy=-14.0 * 23.060548 + k, forces=np.zeros((3, 3)) + k)
        frames.append(atoms)
    ase.io.write(tmp_path / "water.xyz", frames, format="extxyz")
    run = tmp_path / "run"
    words = ["train", str(tmp_path / "config.yaml"), "--data.path", str(tmp_path / "water.xyz")]
    words += ["--data.energy_unit", "kcal/mol", "--output.directory", str(run), "--output.report", "false"]
    (tmp_path / "config.yaml").write_text("model: {num_channels: 4, num_layers: 0, num_radial: 4, max_z: 10}\n")
    words += ["--training.epochs", "1", "--training.batch_size", "4", "--training.device", "cpu"]
    assert main(words) == 0
    store = Store.open(run / "data.store")
    assert len(store) == 12
    assert store.gather([0]).energy[0] == pytest.approx(-14.0, rel=1e-6)
    assert store.gather([3]).forces[0, 0] == pytest.approx(3 / 23.060548, rel=1e-5)
    before = (run / "data.store" / "energy.bin").stat().st_mtime_ns
    assert main([*words, "--training.epochs", "2", "--resume"]) == 0
    assert (run / "data.store" / "energy.bin").stat().st_mtime_ns == before
    capsys.readouterr()
    assert main([*words[:2], "--data.path", str(store.path), "--data.energy_unit", "eV"]) == 2
    assert "data.energy_unit applies to files" in capsys.readouterr().err


@pytest.mark.nightly
def test_a_second_training_of_a_directory_is_refused(config, tmp_path, capsys):
    directory, one = tmp_path / "run", ["--training.epochs", "1"]
    assert run(config, directory, *one) == 0
    before = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    with OutputLock(directory / "training"):  # as another process does
        assert run(config, directory, "--resume", "--training.epochs", "2") == 2
        assert f"only one run at a time may write an output, and process {os.getpid()} on " in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()} == before
    assert run(config, directory, "--resume", "--training.epochs", "2") == 0


def test_a_directory_is_held_before_data_are_read(config, tmp_path, monkeypatch, capsys):
    """Reading and converting may take hours, and writes to the directory."""
    read, directory, tried = training_run.open_data, tmp_path / "run", []

    def meanwhile(*given):
        monkeypatch.undo()
        tried.append(run(config, directory, "--training.epochs", "1"))
        return read(*given)

    monkeypatch.setattr(training_run, "open_data", meanwhile)
    assert run(config, directory, "--training.epochs", "1") == 0
    assert tried == [2]
    assert "only one run at a time may write an output, and process " in capsys.readouterr().err


@pytest.mark.nightly
def test_a_signal_while_data_are_read_leaves_a_state_to_resume(config, whole, tmp_path, monkeypatch):
    read, directory = training_run.open_data, tmp_path / "run"

    def slow(*given):
        signal.raise_signal(signal.SIGTERM)
        monkeypatch.undo()
        return read(*given)

    monkeypatch.setattr(training_run, "open_data", slow)
    assert run(config, directory, *SIX_EPOCHS) == 128 + signal.SIGTERM
    assert run(config, directory, *SIX_EPOCHS, "--resume") == 0
    assert (directory / "epochs.csv").read_bytes() == (whole / "epochs.csv").read_bytes()


def test_a_run_that_cannot_begin_leaves_no_folder(config, tmp_path, monkeypatch):
    def failing(*given):
        raise ValueError("no frames")

    monkeypatch.setattr(training_run, "make_potential", failing)
    assert run(config, tmp_path / "run", "--training.epochs", "1") == 2
    assert not (tmp_path / "run").exists()
