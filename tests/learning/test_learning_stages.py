"""The stages that label and train."""

import numpy as np
import pytest
import torch
from ase.io import read

from tests.learning.conftest import label_here, settings, start_file
from torchmdx import load
from torchmdx.datasets.labelling.labeller import Labeller
from torchmdx.datasets.labelling.run import Paths
from torchmdx.learning import stages
from torchmdx.learning.run import learn
from torchmdx.learning.run_folder import RunFolder
from torchmdx.learning.stage import read_json
from torchmdx.runtime.interrupt import Interrupts


@pytest.fixture
def run(tmp_path, labelling_here):
    start_file(tmp_path / "start.extxyz")
    found = RunFolder(settings(tmp_path), Interrupts(), lambda text: None)
    found.open()
    return found


def test_labels_are_those_of_the_calculator(finished):
    _, folder, _ = finished
    for atoms in read(folder / "round-000" / "label" / "labelled.extxyz", index=":"):
        from ase.calculators.emt import EMT

        forces = atoms.get_forces().copy()
        atoms.calc = EMT()
        np.testing.assert_allclose(atoms.get_forces(), forces, atol=1e-6)


def test_frames_that_fail_are_left_out_and_named(run, monkeypatch):
    label_one = Labeller.labels

    def sometimes(self, structure, seen=[]):  # noqa: B006
        seen.append(structure)
        if len(seen) == 2:
            raise RuntimeError("no convergence")
        return label_one(self, structure)

    monkeypatch.setattr(Labeller, "labels", sometimes)
    stages.start(run)
    found = stages.label_frames(run, 0, run.place(0, "start") / "chosen.extxyz", [])
    assert found["labels"] == 3
    assert found["failures"] == ["chosen.extxyz:1: no convergence"]
    assert found["errors"] is None


def test_labels_that_were_complete_when_a_process_was_killed_are_kept(run, monkeypatch):
    stages.start(run)
    stages.label_frames(run, 0, run.place(0, "start") / "chosen.extxyz", [])
    folder = run.place(0, "label")
    (folder / "done.json").unlink()
    monkeypatch.setattr(stages, "label", None)
    assert stages.label_frames(run, 0, run.place(0, "start") / "chosen.extxyz", [])["labels"] == 4
    # Those of a run with failures, whose journal is there, are continued.
    (folder / "done.json").unlink()
    Paths(folder / "labelled.extxyz").journal.write_bytes(b"")
    monkeypatch.setattr(stages, "label", label_here)
    assert stages.label_frames(run, 0, run.place(0, "start") / "chosen.extxyz", [])["labels"] == 4


def test_a_killed_training_that_has_no_state_begins_anew(run):
    stages.start(run)
    stages.label_frames(run, 0, run.place(0, "start") / "chosen.extxyz", [])
    folder = run.place(0, "train") / "training" / "member-0"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("half")
    stages.train_potential(run, 0)
    assert (run.folder / "potential.safetensors").read_bytes() == (
        run.place(0, "train") / "potential.safetensors"
    ).read_bytes()
    assert len(load(run.folder / "potential.safetensors")) == 2


def test_a_warm_start_goes_on_from_each_member(tmp_path, labelling_here):
    start_file(tmp_path / "start.extxyz")
    frozen = {"start": "warm", "optimizer": {"learning_rate": 1e-12, "ema_decay": 0.0}}
    assert learn(settings(tmp_path, train=frozen), say=lambda text: None) == 0
    before, after = (load(tmp_path / "run" / f"round-00{k}" / "train" / "potential.safetensors") for k in (0, 1))
    assert read_json(tmp_path / "run" / "round-001" / "train" / "done.json")["result"]["warm"]
    for one, other in zip(before, after, strict=True):
        for weight, kept in zip(one.network.parameters(), other.network.parameters(), strict=True):
            torch.testing.assert_close(weight, kept, atol=1e-6, rtol=1e-5)
    first, second = (torch.cat([one.flatten() for one in member.network.parameters()]) for member in after)
    assert not torch.allclose(first, second, atol=1e-3)


@pytest.mark.nightly
def test_labelled_data_are_trained_on_from_the_beginning(tmp_path, finished, labelling_here):
    start_file(tmp_path / "start.extxyz")
    data = str(finished[1] / "round-000" / "label" / "labelled.extxyz")
    config = settings(tmp_path, start={"count": None, "data": data})
    said = []
    assert learn(config, say=said.append) == 0
    assert not (tmp_path / "run" / "round-000" / "label").exists()
    assert said[-1].startswith("not converged after 1 round and 3 labels")
    map_file = read_json(tmp_path / "run" / "round-001" / "select" / "map.json")
    assert len(map_file["labelled"]) == 4


def test_calculators_that_do_not_exist_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="--calculator must be one of gfn2-xtb, .*, got 'gfn3'"):
        learn(settings(tmp_path, label={"calculator": "gfn3"}))
    assert not (tmp_path / "run").exists()
