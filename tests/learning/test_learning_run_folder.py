"""The folder of a run."""

import pytest
import yaml

from tests.learning.conftest import settings
from torchmdx.learning.config import LearnConfig
from torchmdx.learning.run_folder import RunFolder, StoppedBySignal
from torchmdx.runtime.interrupt import Interrupts
from torchmdx.training.config_file import read_as


def folder_of(config):
    return RunFolder(config, Interrupts(), lambda text: None)


def test_the_configuration_is_written_and_reads_as_it_was(finished):
    config, folder, _ = finished
    assert read_as(LearnConfig, folder / "learn.yaml") == config
    assert yaml.safe_load((folder / "learn.yaml").read_text())["start"].keys() == {"structures", "count"}


def test_only_settings_that_change_no_number_may_change(tmp_path):
    config = settings(tmp_path)
    assert not folder_of(config).open()
    free = {"stop": {"rounds": 9, "hours": 2.0}, "label": {"workers": 3, "timeout": 9.0}, "output": {"page": False}}
    for section, keys in free.items():
        values = config.plain()
        values[section] |= keys
        assert folder_of(LearnConfig.model_validate(values)).open()
    values = config.plain()
    values["select"]["diversity"] = 2.0
    with pytest.raises(FileExistsError, match=r"select\.diversity: 1\.0, got 2\.0; only stop, output"):
        folder_of(LearnConfig.model_validate(values)).open()


def test_labels_and_potentials_of_earlier_rounds(finished):
    run = folder_of(finished[0])
    assert list(run.labelled(2)) == [f"round-00{k}/label/labelled.extxyz" for k in (0, 1)]
    assert run.potential(2) == run.place(1, "train") / "potential.safetensors"
    assert run.potential(0) is None
    based = finished[0].model_copy(update={"start": finished[0].start.model_copy(update={"checkpoint": "organic-1"})})
    assert folder_of(based).potential(0) == "organic-1"
    assert len(folder_of(based).settings("start.checkpoint")["start.checkpoint (SHA-256)"]) == 64


def test_a_signal_stops_between_stages(finished):
    run = folder_of(finished[0])
    run.check()
    run.interrupts.received = 15
    with pytest.raises(StoppedBySignal):
        run.check()
