"""`torchmdx lammps`: runs a LAMMPS input with pair_style torchmdx, on as many processes as MPI starts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from torchmdx.lammps.options import OPTIONS, GivenOptions, split

EXAMPLES = ("water",)
USAGE = """\
torchmdx lammps -in FILE [options of LAMMPS]
       torchmdx lammps --example NAME -o DIR"""
DESCRIPTION = """\
Runs a LAMMPS input that may use pair_style torchmdx. Under mpirun the box is divided among the
processes, each with its own GPU: mpirun -np 2 torchmdx lammps -in in.water. Needs the extra
[lammps]."""
OF_LAMMPS = "options of LAMMPS (https://docs.lammps.org/Run_options.html; `lmp -help` lists its styles):"


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "lammps",
        help="run a LAMMPS input, also on several GPUs",
        usage=USAGE,
        description=DESCRIPTION,
        epilog="\n".join([OF_LAMMPS, *(option.line() for option in OPTIONS)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.take_out = split
    parser.add_argument(
        "--example", choices=EXAMPLES, help="write the files of an example instead, to the folder of -o"
    )
    parser.add_argument("-o", "--output", metavar="DIR", help="folder of the example")
    parser.add_argument("-help", action="help", help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    given: GivenOptions = options.taken_out
    if options.example is not None:
        return _write_example(options)
    if options.output is not None:
        raise ValueError("-o is the folder of --example; an input names its own files")
    if given.input is None and given.needs_input:
        raise ValueError("torchmdx lammps needs either -in FILE or --example NAME")
    if given.input is not None and not Path(given.input).is_file():
        raise FileNotFoundError(f"the LAMMPS input {given.input} does not exist")
    from torchmdx.lammps.run import run_input

    return run_input(given.input, given.arguments)


def _write_example(options: argparse.Namespace) -> int:
    from torchmdx.lammps.example import write_example

    if options.taken_out.arguments:
        raise ValueError(f"--example only writes files, got {options.taken_out.arguments[0]}")
    if options.output is None:
        raise ValueError("--example needs a folder for its files: -o DIR")
    folder = Path(options.output)
    for file in write_example(folder):
        print(f"wrote {file}")
    print(f"run it: cd {folder} && mpirun -np 2 torchmdx lammps -in in.water")
    return 0
