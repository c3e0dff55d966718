"""`torchmdx lammps`: runs a LAMMPS input with pair_style torchmdx, on as many processes as MPI starts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

EXAMPLES = ("water",)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "lammps",
        help="run a LAMMPS input, also on several GPUs",
        description="Runs a LAMMPS input that may use pair_style torchmdx. Under mpirun the box is divided among the "
        "processes, each with a GPU of its own: mpirun -np 2 torchmdx lammps -in in.water. Needs the extra [lammps].",
    )
    parser.add_argument("-in", "--input", metavar="FILE", help="LAMMPS input")
    parser.add_argument(
        "-var", "--var", nargs="+", action="append", default=[], metavar="TEXT", help="NAME VALUE ... of a variable"
    )
    parser.add_argument("-log", "--log", metavar="FILE", help="LAMMPS's log (default: log.lammps; none for no log)")
    parser.add_argument("-screen", "--screen", metavar="FILE", help="file for LAMMPS's output; none for no output")
    parser.add_argument(
        "--example", choices=EXAMPLES, help="write the files of an example instead, to the folder of -o"
    )
    parser.add_argument("-o", "--output", metavar="DIR", help="folder of the example")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if (options.input is None) == (options.example is None):
        raise ValueError("torchmdx lammps needs either -in FILE or --example NAME")
    if options.example is not None:
        return _write_example(options)
    if not Path(options.input).is_file():
        raise FileNotFoundError(f"the LAMMPS input {options.input} does not exist")
    from torchmdx.lammps.run import run_input

    arguments = []
    for name in ("log", "screen"):
        if (value := getattr(options, name)) is not None:
            arguments += [f"-{name}", value]
    for values in options.var:
        if len(values) < 2:
            raise ValueError(f"-var needs a name and a value, got {values[0]!r}")
        arguments += ["-var", *values]
    return run_input(options.input, arguments)


def _write_example(options: argparse.Namespace) -> int:
    from torchmdx.lammps.example import write_example

    if options.output is None:
        raise ValueError("--example needs a folder for its files: -o DIR")
    folder = Path(options.output)
    for file in write_example(folder):
        print(f"wrote {file}")
    print(f"run it: cd {folder} && mpirun -np 2 torchmdx lammps -in in.water")
    return 0
