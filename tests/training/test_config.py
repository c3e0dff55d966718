"""Configurations: round trip through text, command-line overrides, invalid settings and their messages."""

import json
import re
from pathlib import Path

import pytest

from torchmdx.commands.cli import main
from torchmdx.training.config import Config
from torchmdx.training.config_file import known_keys, make_config, read_config, write_text


def test_a_complete_file_loads_back(tmp_path):
    config = make_config(
        {"data": {"path": "a b.store", "train": 100, "references": {1: -13.5, 8: -2041.25}}, "loss": {"energy": {}}},
        ["--optimizer.clip_norm", "null", "--output.loggers=[csv]", "--finetune.freeze", "[network.embedding, head]"],
    )
    assert config.optimizer.clip_norm is None
    assert config.output.loggers == ["csv"]
    assert config.finetune.freeze == ["network.embedding", "head"]
    text = write_text(config)
    (tmp_path / "all.yaml").write_text(text)
    assert read_config(tmp_path / "all.yaml") == config
    for key in known_keys():
        line = next(line for line in text.splitlines() if line.strip().startswith(key.rsplit(".", 1)[1] + ":"))
        assert "# " in line, f"{key} has no comment"


def test_a_term_keeps_its_default_weight_with_other_settings():
    config = make_config({"loss": {"energy": {"function": "mae"}, "stress": {"function": "huber"}}})
    assert (config.loss.energy.weight, config.loss.stress.weight) == (10.0, None)


def test_number_formats(tmp_path):
    (tmp_path / "c.yaml").write_text("optimizer: {learning_rate: 1e-3}\ntraining: {batch_size: 64}\n")
    config = read_config(tmp_path / "c.yaml", ["--optimizer.epsilon", "1E-10", "--data.validation", "0.25"])
    assert config.optimizer.learning_rate == 1e-3
    assert (config.optimizer.epsilon, config.data.validation) == (1e-10, 0.25)


def test_print_config_writes_the_effective_configuration(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text("data:\n  path: x\n")
    assert main(["train", str(tmp_path / "c.yaml"), "--training.epochs", "7", "--print-config"]) == 0
    (tmp_path / "d.yaml").write_text(capsys.readouterr().out)
    assert read_config(tmp_path / "d.yaml") == Config.model_validate({"data": {"path": "x"}, "training": {"epochs": 7}})
    assert main(["train", "--print-config", "--devices", "2"]) == 0
    assert "  devices: 2 " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["--trainig.epochs", "5"], "unknown key 'trainig.epochs'; did you mean 'training.epochs'?"),
        (["--epochs", "5"], "unknown key 'epochs'; did you mean 'training.epochs'?"),
        (["--training.epochs", "many"], "training.epochs must be a whole number, got 'many'"),
        (["--training.epochs", "2.5"], "training.epochs must be a whole number, got 2.5"),
        (["--training.epochs", "0"], "training.epochs must be greater than or equal to 1, got 0"),
        (["--training.seed", "-1"], "training.seed must be greater than or equal to 0, got -1"),
        (["--training.seed", str(2**63)], f"training.seed must be less than {2**63}, got {2**63}"),
        (["--data.seed", "-1"], "data.seed must be greater than or equal to 0, got -1"),
        (["--output.report", "5"], "output.report must be a boolean, got 5"),
        (["--output.report", "'False'"], "output.report must be a boolean, got 'False'"),
        (["--schedule.name", "cosin"], "must be 'cosine', 'plateau' or 'constant', got 'cosin'; did you mean 'cosine'"),
        (["--optimizer.learning_rate", "-1"], "optimizer.learning_rate must be greater than 0, got -1"),
        (["--optimizer.learning_rate", ".nan"], "optimizer.learning_rate must be a finite number, got nan"),
        (
            ["--loss.energy.weight", "0", "--loss.forces.weight", "0"],
            "loss: at least one of energy, forces, stress, charges, dipole must",
        ),
        (["--loss.change_from", "0.5", "--loss.change_to", "0.2"], "change_from must be <= change_to, got 0.5 and 0.2"),
        (
            ["--output.loggers", "[tensorbord]"],
            "loggers must be any of csv, tensorboard, wandb, mlflow, got 'tensorbord'",
        ),
        (["--training.batch_size", "9", "--training.devices", "2"], "multiple of devices x nodes = 2, got 9"),
        (["--training.device", "tpu"], "device must be auto, cpu, cuda or cuda:1, got 'tpu'"),
        (["--training.device", "cuda:x"], "device must be auto, cpu, cuda or cuda:1, got 'cuda:x'"),
        (
            ["--training.device", "cuda:1", "--training.devices", "2"],
            "device must be cuda if devices x nodes > 1, because each process uses its own GPU; got device 'cuda:1'"
            " with devices x nodes = 2",
        ),
        (["--training.epochs"], "--training.epochs needs a value, got none"),
        (["training.epochs", "3"], "settings must be given as --section.key value, got 'training.epochs'"),
    ],
)
def test_invalid_settings_are_rejected(changes, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        make_config({}, changes)


def test_all_invalid_keys_of_a_file_are_reported(tmp_path):
    (tmp_path / "c.yaml").write_text("data: {pth: x}\nloss: {energy: {wieght: 3}}\n")
    with pytest.raises(ValueError, match="'data.pth'; did you mean 'data.path'.*'loss.energy.wieght'; did you mean"):
        read_config(tmp_path / "c.yaml")
    (tmp_path / "c.yaml").write_text("data: [")
    with pytest.raises(ValueError, match="not valid YAML"):
        read_config(tmp_path / "c.yaml")
    with pytest.raises(FileNotFoundError, match="no configuration at"):
        read_config(tmp_path / "none.yaml")


def test_false_is_false():
    assert make_config({}, ["--output.report", "false"]).output.report is False
    assert make_config({}, ["--output.report", "False"]).output.report is False


def test_the_documentation_has_every_setting_and_its_default():
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    found = re.findall(r"^\| `([a-z_.0-9]+)` \| `(.*?)` \|", text, re.MULTILINE)
    rows = dict(found)
    assert len(rows) == len(found)
    assert rows.keys() == set(known_keys())
    assert all(make_config({}, [f"--{key}={default}"]) == Config() for key, default in rows.items())


def test_the_short_configuration_of_the_documentation_is_valid(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)):
        (tmp_path / "c.yaml").write_text(block)
        config = read_config(tmp_path / "c.yaml")
        expected = (
            (1000, "keep", None),
            (None, "keep", "REF_energy"),
            (["train.xyz", "more.xyz"], "keep", None),
            (None, "keep", None),
            (None, "shift", None),
            (None, "keep", None),
            (None, "keep", None),
            (None, "keep", None),
        )[number]
        assert (config.data.train, config.finetune.references, config.data.energy_key) == expected


def bomb(levels: int) -> str:
    """Each level has the one before nine times."""
    lines = ["model:", "  a0: &a0 [x,x,x,x,x,x,x,x,x]"]
    for level in range(1, levels):
        lines.append(f"  a{level}: &a{level} [{','.join([f'*a{level - 1}'] * 9)}]")
    return "\n".join(lines)


def merges(levels: int) -> str:
    lines = ["a0: &a0 {k: 1}"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} {{<<: [{','.join([f'*a{level - 1}'] * 9)}]}}")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (bomb(12), "must have at most 100000 values, got .*e.1. with its aliases"),
        (merges(12), "must have at most 100000 values"),
        ("[" * 20000, "nested too deeply|not valid YAML"),
        ("a: " + "{b: " * 5000 + "1" + "}" * 5000, "nested too deeply"),
        ("model: &m\n  a: *m", "must not be inside what it refers to"),
    ],
)
def test_files_that_grow_or_are_nested_too_deeply_are_refused(tmp_path, text, words):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match=words) as error:
        read_config(tmp_path / "config.yaml")
    assert "config.yaml" in str(error.value)


def test_aliases_are_read(tmp_path):
    (tmp_path / "config.yaml").write_text("training: &t {epochs: 3}\nmodel: {}\nschedule: {}\n")
    (tmp_path / "other.yaml").write_text("data: {seed: &s 7}\ntraining: {seed: *s, epochs: 3}\n")
    assert read_config(tmp_path / "config.yaml").training.epochs == 3
    assert read_config(tmp_path / "other.yaml").training.seed == 7


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data: {path: x}\ndata: {path: y}\n", "a key must be given once, got 'data' in lines 1 and 2"),
        ("data:\n  path: x\n  seed: 1\n  path: y\n", "a key must be given once, got 'path' in lines 2 and 4"),
        ("model: {priors: [{prior: zbl, prior: coulomb}]}\n", "got 'prior' in lines 1 and 1"),
    ],
)
def test_a_key_that_is_given_twice_is_refused(tmp_path, text, said):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ValueError, match=re.escape(said)):
        read_config(tmp_path / "c.yaml")


def test_the_same_key_in_two_sections_is_not_twice(tmp_path):
    (tmp_path / "c.yaml").write_text("loss: {energy: {weight: 2}, forces: {weight: 3}}\ndata: {seed: 1}\n")
    assert read_config(tmp_path / "c.yaml").loss.forces.weight == 3.0


def test_the_schema_has_every_key_with_its_words_and_values(capsys):
    assert main(["train", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert schema["additionalProperties"] is False

    def resolved(one):
        one = one.get("allOf", [one])[0]  # of older pydantic
        return schema["$defs"][one["$ref"].rsplit("/", 1)[1]] if "$ref" in one else one

    for key in known_keys():
        at = schema
        for word in key.split("."):
            at = resolved(at)["properties"][word]
        assert resolved(at).get("description") or at.get("description"), key
    checks = resolved(schema["properties"]["data"])["properties"]["checks"]
    assert checks["enum"] == ["refuse", "warn", "off"]
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(Config().plain(), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"training": {"epoch": 3}}, schema)
