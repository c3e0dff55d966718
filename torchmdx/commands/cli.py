"""The `torchmdx` command. Each subcommand is a module of torchmdx.commands with `add_parser` and `run`."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torchmdx
from torchmdx.commands import (
    bench,
    convert,
    data,
    demo,
    distill,
    energy,
    evaluate,
    export,
    info,
    label,
    lammps,
    learn,
    md,
    neb,
    neighbors,
    profile,
    properties,
    relax,
    serve,
    train,
    uncertainty,
    view,
)
from torchmdx.commands.console import BAD_INPUT, end_of_pipe, open_closed_streams, plain_warnings, print_error
from torchmdx.commands.options import with_chosen_head
from torchmdx.commands.spelling import Parser
from torchmdx.runtime.output_lock import OutputLock

COMMANDS = (
    demo,
    energy,
    relax,
    neb,
    properties,
    md,
    lammps,
    view,
    label,
    data,
    train,
    distill,
    learn,
    evaluate,
    uncertainty,
    convert,
    export,
    serve,
    neighbors,
    bench,
    profile,
    info,
)
DESCRIPTION = """\
Molecular dynamics with neural-network potentials.

Structure files can have any format that ASE reads (xyz, cif, pdb, POSCAR, ...).
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = Parser(
        prog="torchmdx",
        description=DESCRIPTION,
        epilog="Run `torchmdx COMMAND --help` for the options of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-V", "--version", action="version", version=f"torchmdx {torchmdx.__version__}")
    subparsers = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status: that of the command, or 2 after an error in its input."""
    open_closed_streams()
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()  # fails here, not at exit, if the reader of the output has closed its pipe
    except BrokenPipeError:
        return end_of_pipe()


def _run(arguments: Sequence[str] | None) -> int:
    options = build_parser().parse_args(arguments)
    try:
        if hasattr(options, "head") and hasattr(options, "model") and options.command != "evaluate":
            # `evaluate` does so itself, as its FILE may be the potential.
            options.model = with_chosen_head(options.model, options.head)
        with plain_warnings(), _locked(options):
            status: int = options.run(options)
            return status
    except BrokenPipeError:
        raise
    except _expected_errors() as error:
        if os.environ.get("TORCHMDX_TRACEBACK"):
            raise
        print_error(error)
        return BAD_INPUT


@contextlib.contextmanager
def _locked(options: argparse.Namespace) -> Iterator[None]:
    """Holds the outputs of commands whose options named in `options.locked` are files that they write."""
    with contextlib.ExitStack() as locks:
        given = [getattr(options, name) for name in getattr(options, "locked", ())]
        for output in {Path(output).resolve(): output for output in given if output}.values():
            if Path(output).parent.is_dir():  # otherwise the command says what is missing
                locks.enter_context(OutputLock(output))
        yield


def _expected_errors() -> tuple[type[Exception], ...]:
    """Errors in the input of a command. StepError only if the command has imported it: that takes torch."""
    results = sys.modules.get("torchmdx.step.results")
    errors = (ValueError, TypeError, OSError, ArithmeticError, ImportError, MemoryError)
    return errors if results is None else (*errors, results.StepError)


if __name__ == "__main__":
    sys.exit(main())
