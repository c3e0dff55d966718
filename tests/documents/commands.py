"""Commands of the documents: taken apart as a shell would, checked against parsers, and run in this process."""

import glob
import os
import re
import shlex
import subprocess
import sys
import tomllib
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Iterator

from documents.blocks import ROOT, Block

from torchmdx.commands.cli import build_parser, main
from torchmdx.learning.config import LearnConfig
from torchmdx.training.config_file import known_keys, make_as, make_config

ASSIGNMENT = re.compile(r"^[A-Z_]+=")
REQUIREMENT = re.compile(r"^(torchmdx|\.)(?:\[([a-z,-]+)\])?$")


def commands(block: Block) -> Iterator[list[str]]:
    """Words of each command: lines that end in a backslash go on, and comments are left out."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and ASSIGNMENT.match(words[0]):
            words.pop(0)
        if words:
            yield words


def check(words: list[str]) -> None:
    """Asserts that a command of torchmdx, pip, make or python names what exists. Others are not for us to judge."""
    program = words[0].removeprefix(".venv/bin/")
    if program == "torchmdx":
        check_ours(words[1:])
    elif words[:2] == ["pip", "install"] or words[1:4] == ["-m", "pip", "install"]:
        check_pip(words[words.index("install") + 1 :])
    elif program == "make":
        targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        asked = {word for word in words[1:] if "=" not in word}
        assert asked <= targets, f"make has no {asked - targets}"
    elif program == "python" and words[1].startswith(("examples/", "benchmarks/", "tools/")):
        assert (ROOT / words[1]).is_file(), f"there is no {words[1]}"


def check_ours(arguments: list[str]) -> None:
    """Asserts that the parser takes the arguments, and the training its keys."""
    if arguments == ["train", "--help"] or arguments[1:] == ["--help"]:
        assert arguments[0] in subcommands()
        return
    try:
        options = build_parser().parse_args(arguments)
    except SystemExit as stopped:
        raise AssertionError(f"torchmdx does not take {shlex.join(arguments)}") from stopped
    if arguments[0] == "learn":
        changes = options.words
        assert changes or options.example or options.schema
        make_as(LearnConfig, {"start": {"structures": "x"}, "label": {"calculator": "emt"}}, changes[1:])
    if arguments[0] == "train":
        changes = options.words
        if changes and not changes[0].startswith("--"):
            changes.pop(0)
        make_config({}, changes)


def check_pip(words: list[str]) -> None:
    """Asserts that what is installed is torchmdx with extras that it has, or PyTorch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras, takes_value = set(project["optional-dependencies"]), {"-c", "--index-url", "--extra-index-url"}
    while words:
        word = words.pop(0)
        if word in takes_value:
            words.pop(0)
        elif not word.startswith("-") and word.split("==")[0] not in ("torch", "openmm[cuda12]", "openmm"):
            found = REQUIREMENT.match(word)
            assert found, f"pip install {word}: neither torchmdx nor torch"
            asked = set(found[2].split(",")) if found[2] else set()
            assert asked <= extras, f"there is no extra {asked - extras}"


def run(words: list[str], more: list[str]) -> None:
    """Runs a command of torchmdx or python here, in the working directory; asserts that it succeeds."""
    check(words)
    if words[0] == "torchmdx":
        arguments = [name for word in words[1:] for name in expanded(word)] + more
        assert main(arguments) == 0, f"torchmdx {shlex.join(arguments)} failed"
    elif words[0] == "python":
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, *words[1:]], check=True, timeout=100, env=environment)
    elif words[0] not in ("pip", "make"):
        raise AssertionError(f"{words[0]!r} can't be run by this test: mark its block <!-- not run: why -->")


def expanded(word: str) -> list[str]:
    """Files that a pattern matches; the word itself if none does, as a shell has it."""
    return sorted(glob.glob(word)) or [word]


def subcommands() -> dict[str, ArgumentParser]:
    """Parsers of the command line by name, those of `data` as 'data convert'."""

    def below(parser: ArgumentParser, prefix: str) -> Iterator[tuple[str, ArgumentParser]]:
        for action in parser._actions:
            if isinstance(action, _SubParsersAction):
                for name, inner in action.choices.items():
                    yield f"{prefix}{name}", inner
                    yield from below(inner, f"{prefix}{name} ")

    return dict(below(build_parser(), ""))


def known_options() -> set[str]:
    """Every option of every command, and every key of a training and of active learning."""
    parsers = [build_parser(), *subcommands().values()]
    keys = {f"--{key}" for key in (*known_keys(), *known_keys(LearnConfig))}
    return {option for parser in parsers for option in parser._option_string_actions} | keys
