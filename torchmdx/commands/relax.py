"""`torchmdx relax`: moves the atoms, and optionally the cell, to an energy minimum."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from torchmdx.commands.options import add_model_options, make_calculator
from torchmdx.structure_files import read_structure


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "relax",
        help="relax a structure to an energy minimum",
        description="Relaxes a structure with BFGS and writes the result.",
    )
    parser.add_argument("file", metavar="FILE", help="structure file, in any format that ASE reads")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="file of the relaxed structure; its ending sets the format",
    )
    add_model_options(parser)
    parser.add_argument(
        "--index", default="-1", metavar="I", help="index of the structure in the file (default: -1, the last)"
    )
    parser.add_argument("--cell", action="store_true", help="also relax the cell")
    parser.add_argument(
        "--fmax", type=float, default=0.01, metavar="F", help="stop when all forces are below F eV/Å (default: 0.01)"
    )
    parser.add_argument("--steps", type=int, default=500, metavar="N", help="maximum number of steps (default: 500)")
    parser.add_argument("--trajectory", metavar="FILE", help="write every step to this file (.traj)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    import ase.io
    from ase.filters import FrechetCellFilter
    from ase.optimize import BFGS

    if options.fmax <= 0:
        raise ValueError(f"--fmax must be > 0 eV/Å, got {options.fmax}")
    if options.steps < 1:
        raise ValueError(f"--steps must be >= 1, got {options.steps}")
    _require_output(options.output)
    atoms = read_structure(options.file, options.index)
    if options.cell and not atoms.pbc.any():
        raise ValueError("--cell needs a periodic structure, got one with pbc False in all directions")
    if options.cell and atoms.cell.rank < 3:
        raise ValueError(f"--cell needs a cell with three lattice vectors, got one of rank {atoms.cell.rank}")
    atoms.calc = make_calculator(options)
    before = atoms.get_potential_energy()
    target: Any = FrechetCellFilter(atoms) if options.cell else atoms
    with BFGS(target, trajectory=options.trajectory, logfile="-") as optimizer:
        converged = optimizer.run(fmax=options.fmax, steps=options.steps)
    ase.io.write(options.output, atoms)
    print(f"energy {before:.6f} -> {atoms.get_potential_energy():.6f} eV; wrote {options.output}")
    if not converged:
        print(
            f"not converged to {options.fmax} eV/Å in {options.steps} steps; raise --steps or --fmax",
            file=sys.stderr,
        )
        return 1
    return 0


def _require_output(path: str) -> None:
    """Raises, before the relaxation, if the output file cannot be written."""
    from ase.io.formats import UnknownFileTypeError, filetype, ioformats

    if not Path(path).parent.is_dir():
        raise FileNotFoundError(f"--output must be in an existing directory, got {path!r}")
    try:
        writable = ioformats[filetype(path, read=False)].can_write
    except (UnknownFileTypeError, KeyError):
        writable = False
    if not writable:
        raise ValueError(
            f"--output must have the ending of a format that ASE writes (.xyz, .cif, .traj, ...), got {path!r}"
        )
