"""Settings: what is refused, and the training that they make."""

import pytest

from tests.learning.conftest import settings
from torchmdx.learning.config import LearnConfig
from torchmdx.training.config import Config
from torchmdx.training.config_file import json_schema, known_keys, make_as, read_as

START = {"structures": "start.xyz"}
LABEL = {"calculator": "emt"}


def test_two_sections_are_enough():
    config = make_as(LearnConfig, {"start": START, "label": LABEL})
    assert config.first_labels == config.select.count == 10
    assert (config.threshold, config.broken) == (1.0, 10.0)
    assert LearnConfig.model_validate(config.plain()) == config


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, "start .*required"),
        ({"start": {}}, "start: start needs structures or smiles to explore from, got neither"),
        ({"start": START, "label": {}}, "label: calculator must be given"),
        ({"start": START, "label": LABEL, "explor": {}}, "unknown key 'explor'; did you mean 'explore'"),
        ({"start": START, "label": LABEL, "explore": {"step": 5}}, r"unknown key 'explore\.step'; did you mean"),
        (
            {"start": START, "label": LABEL, "select": {"count": 0}},
            r"select\.count .*equal to 1, got 0",
        ),
        ({"start": START | {"count": 0}, "label": LABEL}, r"start\.count must be >= 1 without start\.data"),
        (
            {"start": START, "label": LABEL, "train": {"data": {"path": "x.xyz"}}},
            r"data\.path is set by torchmdx learn, see start\.data; got 'x\.xyz'",
        ),
        (
            {"start": START, "label": LABEL, "train": {"training": {"ensemble": 4}}},
            r"training\.ensemble is set by torchmdx learn, see uncertainty\.members; got 4",
        ),
        (
            {"start": START, "label": LABEL, "train": {"finetune": {"checkpoint": "organic-1"}}},
            r"finetune\.checkpoint is set by torchmdx learn, see start\.checkpoint; got 'organic-1' with .* None",
        ),
        ({"start": START, "label": LABEL, "train": {"finetune": {"lora": 4}}}, "lora needs a checkpoint to fine-tune"),
        ({"start": START, "label": LABEL, "stop": {"labels": 5}}, r"stop\.labels must be at least .* 10, got 5"),
    ],
)
def test_wrong_settings_are_refused_with_key_and_value(values, text):
    with pytest.raises(ValueError, match=text):
        make_as(LearnConfig, values)


def test_a_file_with_changes(tmp_path):
    (tmp_path / "learn.yaml").write_text("start: {structures: a.xyz}\nlabel: {calculator: emt}\n")
    config = read_as(LearnConfig, tmp_path / "learn.yaml", ["--stop.rounds", "3", "--train.loss.energy.weight=2"])
    assert config.stop.rounds == 3
    assert config.train.loss.energy.weight == 2
    with pytest.raises(ValueError, match=r"unknown key 'stop\.round'; did you mean 'stop\.rounds'"):
        read_as(LearnConfig, tmp_path / "learn.yaml", ["--stop.round", "3"])


def test_settings_of_the_training_are_those_of_torchmdx_train():
    mine, theirs = set(known_keys(LearnConfig)), set(known_keys(Config))
    missing = {key for key in theirs if f"train.{key}" not in mine}
    assert {key.split(".")[0] for key in missing} == {"output"}
    assert "train" in json_schema(LearnConfig, "torchmdx learn")["properties"]


def test_a_training_suits_the_number_of_frames_unless_it_is_told_otherwise(tmp_path):
    config = settings(tmp_path, train={"training": {"epochs": 40}})
    few = config.training("run", ["a.xyz"], None, 8)
    assert (few.training.batch_size, few.data.validation, few.data.test, few.data.checks) == (1, 0, 0, "warn")
    # 320 steps: weights are averages over one in fifty of them
    assert few.optimizer.ema_decay == pytest.approx(1 - 50 / 320)
    assert few.schedule.warmup_steps == 16
    many = config.training("run", ["a.xyz"], None, 5000)
    assert (many.training.batch_size, many.data.validation, many.schedule.warmup_steps) == (32, 0.1, 100)
    assert many.optimizer.ema_decay == pytest.approx(1 - 50 / (40 * 157))
    given = {"training": {"batch_size": 4}, "data": {"validation": 0.5}, "schedule": {"warmup_steps": 7}}
    told = settings(tmp_path, train=given | {"optimizer": {"ema_decay": 0.9}}).training("run", ["a.xyz"], None, 8)
    assert (told.training.batch_size, told.data.validation, told.schedule.warmup_steps) == (4, 0.5, 7)
    assert told.optimizer.ema_decay == 0.9


def test_few_validation_frames_do_not_choose_the_epoch(tmp_path):
    last_layer = {"start": {"count": 20}, "uncertainty": {"kind": "last_layer"}}
    for more, held_out in (({}, 0), (last_layer, 10), ({"uncertainty": {"members": 2, "resample": True}}, 0.1)):
        made = settings(tmp_path, train={"training": {"epochs": 40}}, **more).training("run", ["a.xyz"], None, 60)
        assert (made.data.validation, made.training.validate_every) == (held_out, 40)
    many = settings(tmp_path, train={"training": {"epochs": 40}}).training("run", ["a.xyz"], None, 500)
    assert (many.data.validation, many.training.validate_every) == (0.1, 1)
    for asked in (
        {"training": {"validate_every": 1}},
        {"training": {"stop_after": 3}},
        {"schedule": {"name": "plateau"}},
    ):
        told = settings(tmp_path, train=asked).training("run", ["a.xyz"], None, 60)
        assert told.training.validate_every == 1


def test_a_training_begins_with_the_checkpoint_and_has_the_members(tmp_path):
    config = settings(tmp_path, start={"checkpoint": "organic-1"}, train={"finetune": {"lora": 4}})
    tuned = config.training("run", ["a.xyz"], "organic-1")
    assert (tuned.finetune.checkpoint, tuned.finetune.lora, tuned.training.ensemble) == ("organic-1", 4, 2)
    assert config.training("run", ["a.xyz"], None).finetune.lora is None


def test_an_uncertainty_of_the_last_layer_needs_one_potential_and_frames_that_calibrate_it(tmp_path):
    config = settings(tmp_path, start={"count": None}, uncertainty={"kind": "last_layer"})
    assert config.first_labels == 20
    assert (config.threshold, config.uncertainty.unit) == (0.2, "eV")
    made = config.training("run", ["a.xyz"], None, 20)
    assert made.training.ensemble == 1
    assert made.data.validation == 10
    assert made.output.uncertainty
    assert config.training("run", ["a.xyz"], None, 500).data.validation == 0.1
    assert not settings(tmp_path).training("run", ["a.xyz"], None, 20).output.uncertainty
    with pytest.raises(ValueError, match=r"start\.count must be above 10 with uncertainty\.kind last_layer, .* got 4"):
        settings(tmp_path, uncertainty={"kind": "last_layer"})
