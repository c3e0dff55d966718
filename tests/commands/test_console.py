"""Warnings, errors and closed pipes on the console."""

import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest

from torchmdx.commands import cli
from torchmdx.commands.console import is_explained, plain_warnings
from torchmdx.structures.total_charge import checked_charge


def test_equal_warnings_are_printed_once_and_counted(capsys):
    with warnings.catch_warnings():
        warnings.resetwarnings()  # pytest's filters
        with plain_warnings():
            for _ in range(20):
                warnings.warn("the same", stacklevel=1)
            warnings.warn("another", stacklevel=1)
    assert capsys.readouterr().err.splitlines() == [
        "torchmdx: warning: the same",
        "torchmdx: warning: another",
        "torchmdx: warning: 20 times: the same",
    ]


def fails(error):
    def run(options):
        if isinstance(error, BaseException):
            raise error
        error()

    return lambda arguments: SimpleNamespace(run=run), error


@pytest.mark.parametrize(
    ("error", "explained"),
    [
        (lambda: checked_charge("x"), True),
        (lambda: int("x"), False),
        (FileNotFoundError("no such file"), True),
        (ZeroDivisionError("division by zero"), False),
    ],
)
def test_a_traceback_is_offered_only_for_unexpected_errors(capsys, monkeypatch, error, explained):
    parse, _ = fails(error)
    monkeypatch.delenv("TORCHMDX_TRACEBACK", raising=False)
    monkeypatch.setattr(cli, "build_parser", lambda: SimpleNamespace(parse_args=parse))
    assert cli.main([]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("torchmdx: error: ")
    assert ("TORCHMDX_TRACEBACK" in shown) != explained


def test_errors_without_a_traceback_are_unexpected():
    assert not is_explained(ValueError("made, not raised"))


@pytest.mark.nightly
def test_a_closed_pipe_ends_quietly(tmp_path):
    """The reader of the first line of a table has gone before the rest is written."""
    path = tmp_path / "many.xyz"
    path.write_text("1\n\nH 0 0 0\n" * 3000)
    command = f"{sys.executable} -m torchmdx.commands.cli neighbors {path} --index : --cutoff 2 | head -1"
    done = subprocess.run(
        ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (141, "")
    assert done.stdout.startswith("H: 1 atom, ")


def test_a_pipe_that_is_closed_during_a_command_is_no_error(capsys, monkeypatch):
    parse, _ = fails(BrokenPipeError(32, "Broken pipe"))
    monkeypatch.setattr(cli, "build_parser", lambda: SimpleNamespace(parse_args=parse))
    assert cli.main([]) == 141
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("closed", "left"), [(">&-", "stderr"), ("2>&-", "stdout")])
def test_a_closed_output_is_nobodys_file(tmp_path, closed, left):
    """The next file that is opened has its number otherwise, and what libraries print goes there."""
    lines = (
        "import os, sys",
        "from torchmdx.commands import cli",
        "def run(options):",
        "    with open('file', 'w') as file:",
        "        assert file.fileno() > 2, file.fileno()",
        "    print('out'); print('err', file=sys.stderr)",
        "    os.write(1, b'raw'); os.write(2, b'raw')",
        "    return 0",
        "parser = type('P', (), {'parse_args': lambda self, words: type('O', (), {'run': staticmethod(run)})})",
        "cli.build_parser = parser",
        "sys.exit(cli.main([]))",
    )
    (tmp_path / "program.py").write_text("\n".join(lines))
    command = f"{sys.executable} program.py {closed}"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "file").read_text() == ""
    assert sorted((done.stdout + done.stderr).replace("raw", " raw ").split()) == sorted(["raw", left[3:]])
