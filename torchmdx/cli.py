"""The `torchmdx` command. Each subcommand is a module of torchmdx.commands with `add_parser` and `run`."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import torchmdx
from torchmdx.commands import (
    bench,
    convert,
    data,
    demo,
    energy,
    evaluate,
    info,
    label,
    md,
    neighbors,
    profile,
    relax,
    train,
    view,
)
from torchmdx.step.results import StepError

COMMANDS = (demo, energy, relax, md, view, label, data, train, evaluate, convert, neighbors, bench, profile, info)
DESCRIPTION = """\
Molecular dynamics with neural-network potentials.

Structure files can have any format that ASE reads (xyz, cif, pdb, POSCAR, ...).
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
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
    options = build_parser().parse_args(arguments)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            status: int = options.run(options)
            return status
    except (ValueError, TypeError, OSError, ArithmeticError, ImportError, StepError) as error:
        if os.environ.get("TORCHMDX_TRACEBACK"):
            raise
        print(f"torchmdx: error: {error}", file=sys.stderr)
        print("(set TORCHMDX_TRACEBACK=1 for the traceback)", file=sys.stderr)
        return 2


def _show_warning(message: Warning | str, *where: Any, **more: Any) -> None:
    """Prints a warning like an error, without the location in the code, which does not help on the command line."""
    print(f"torchmdx: warning: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
