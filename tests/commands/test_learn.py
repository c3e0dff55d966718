"""The command `torchmdx learn`."""

import json

import pytest

from tests.learning.conftest import start_file
from torchmdx.commands import cli
from torchmdx.learning.config import LearnConfig
from torchmdx.training.config_file import read_as


def test_the_example_can_be_used_as_it_is(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["learn", "--example"]) == 0
    (tmp_path / "learn.yaml").write_text(capsys.readouterr().out)
    assert read_as(LearnConfig, tmp_path / "learn.yaml").select.count == 8
    start_file(tmp_path / "start.extxyz")
    assert cli.main(["learn", "learn.yaml", "--dry-run", "--stop.rounds", "7"]) == 0
    assert "at most 7 rounds" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["learn.yaml", "start.extxyz"]


def test_the_schema_names_the_command(capsys):
    assert cli.main(["learn", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "torchmdx learn"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "learn needs a configuration: torchmdx learn LEARN.yaml (--example prints one)"),
        (["none.yaml"], "no configuration at 'none.yaml'"),
        (["learn.yaml", "--select.cout", "3"], "unknown key 'select.cout'; did you mean 'select.count'?"),
        (["learn.yaml", "--label.calculator", "gfn3"], "--calculator must be one of gfn2-xtb"),
    ],
)
def test_errors_say_what_to_do(tmp_path, monkeypatch, capsys, words, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "learn.yaml").write_text("start: {structures: start.extxyz}\nlabel: {calculator: emt}\n")
    assert cli.main(["learn", *words]) == 2
    assert text in capsys.readouterr().err
