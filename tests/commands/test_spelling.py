"""Suggestions for misspelt commands and options."""

import pytest

from torchmdx.commands import cli
from torchmdx.commands.spelling import nearest


def refused(capsys, *words) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(words))
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "usage", "suggestion"),
    [
        (["relaxx", "e.xyz"], "usage: torchmdx [", "did you mean relax?"),
        (["data", "convrt"], "usage: torchmdx data", "did you mean convert?"),
        (["md", "e.pdb", "-o", "r", "--steps", "1", "--temprature", "3"], "usage: torchmdx md", "mean --temperature?"),
        (["md", "e.pdb", "--otput=r", "--steps", "1"], "usage: torchmdx md", "are required: -o/--output; did you mean"),
        (["energy", "e.xyz", "--dtype", "float46"], "usage: torchmdx energy", "did you mean float64?"),
    ],
)
def test_the_nearest_name_is_suggested(capsys, words, usage, suggestion):
    error = refused(capsys, *words)
    assert error.startswith(usage)
    assert suggestion in " ".join(error.split())


def test_nothing_is_suggested_for_something_else(capsys):
    assert "did you mean" not in refused(capsys, "energy", "e.xyz", "--frobnicate")
    assert "unrecognized arguments: --frobnicate" in refused(capsys, "energy", "e.xyz", "--frobnicate")
    assert nearest(["--xyz"], ["--model"]) == ""


def test_an_abbreviated_option_is_not_corrected(capsys):
    assert refused(capsys, "energy", "e.xyz", "--devi", "cpu", "--frobnicate").count("did you mean") == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["train", "--resumee", "c.yaml"], "unrecognized arguments: --resumee; did you mean --resume?"),
        (["train", "c.yaml", "--device=2"], "unrecognized arguments: --device; did you mean --devices?"),
        (["train", "--epochs", "5", "c.yaml"], "unrecognized arguments: --epochs; did you mean --training.epochs?"),
        (["train", "c.yaml", "--data", "x"], "unrecognized arguments: --data\n"),
        (["train", "-x", "c.yaml"], "unrecognized arguments: -x\n"),
        (["learn", "--dryrun", "l.yaml"], "unrecognized arguments: --dryrun; did you mean --dry-run?"),
        (
            ["train", "--training.epochs", "5", "c.yaml"],
            "the configuration must come before overrides: torchmdx train CONFIG.yaml --section.key value, got "
            "'--training.epochs' first",
        ),
        (
            ["learn", "--stop.rounds=5", "l.yaml"],
            "the configuration must come before overrides: torchmdx learn LEARN.yaml --section.key value, got "
            "'--stop.rounds=5' first",
        ),
    ],
)
def test_words_that_no_configuration_has_are_refused(tmp_path, monkeypatch, capsys, words, text):
    monkeypatch.chdir(tmp_path)
    for name in ("c.yaml", "l.yaml"):
        (tmp_path / name).write_text("")
    assert cli.main(words) == 2
    assert text in capsys.readouterr().err


def test_values_of_overrides_may_begin_with_a_minus(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text("")
    assert cli.main(["train", str(tmp_path / "c.yaml"), "--training.seed", "-1"]) == 2
    assert "training.seed must be greater than or equal to 0, got -1" in capsys.readouterr().err
