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
