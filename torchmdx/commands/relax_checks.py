"""What `torchmdx relax` requires of its options, of the structure and of the output files."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from torchmdx.commands import fixed_symmetry
from torchmdx.commands.cell_options import require_cell
from torchmdx.runtime.files import require_new

if TYPE_CHECKING:
    from ase import Atoms


def require_options(options: argparse.Namespace) -> None:
    """Raises ValueError for values out of range and options without the one that they belong to."""
    if not 0 < options.fmax < math.inf:
        raise ValueError(f"--fmax must be > 0 eV/Å, got {options.fmax}")
    if options.steps < 1:
        raise ValueError(f"--steps must be >= 1, got {options.steps}")
    if options.pressure is not None and not math.isfinite(options.pressure):
        raise ValueError(f"--pressure must be a finite number of GPa, got {options.pressure}")
    require_cell(options)
    if options.symmetry_precision is not None:
        if not 0 < options.symmetry_precision < math.inf:
            raise ValueError(f"--symmetry-precision must be > 0 Å, got {options.symmetry_precision}")
        if not options.fix_symmetry:
            raise ValueError("--symmetry-precision needs --fix-symmetry")


def require_structure(options: argparse.Namespace, atoms: Atoms) -> None:
    """Raises ValueError for a structure without the cell that the options need."""
    if options.cell and not atoms.pbc.any():
        raise ValueError("--cell needs a periodic structure, got one with pbc False in all directions")
    if options.cell and atoms.cell.rank < 3:
        raise ValueError(f"--cell needs a cell with three lattice vectors, got one of rank {atoms.cell.rank}")
    if options.pressure and not atoms.pbc.all():
        raise ValueError(f"--pressure needs a structure periodic in all directions, got pbc {atoms.pbc.tolist()}")
    if options.fix_symmetry:
        fixed_symmetry.require_symmetry_support(atoms)


def require_outputs(options: argparse.Namespace) -> None:
    """Raises, before the relaxation, if an output file cannot be written or exists without --overwrite."""
    from ase.io.formats import UnknownFileTypeError, filetype, ioformats

    path, trajectory = options.output, options.trajectory
    for option, name in (("--output", path), ("--trajectory", trajectory)):
        if name is not None and not Path(name).parent.is_dir():
            raise FileNotFoundError(f"{option} must be in an existing directory, got {name!r}")
    if trajectory is not None and Path(trajectory).resolve() == Path(path).resolve():
        raise ValueError(f"--output and --trajectory must be different files, got {path!r} for both")
    if trajectory is not None and Path(trajectory).resolve() == Path(options.file).resolve():
        raise ValueError(f"--trajectory must not be the structure file, got {trajectory!r}")
    try:
        writable = ioformats[filetype(path, read=False)].can_write
    except (UnknownFileTypeError, KeyError):
        writable = False
    if not writable:
        raise ValueError(
            f"--output must have the ending of a format that ASE writes (.xyz, .cif, .traj, ...), got {path!r}"
        )
    if not options.overwrite:
        require_new(*(str(name) for name in (path, trajectory, page_of(options)) if name is not None))


def page_of(options: argparse.Namespace) -> Path | None:
    """The interactive page next to the output; None if it is not requested, or if the output has its name."""
    page = Path(options.output).with_suffix(".html")
    return None if options.no_page or page == Path(options.output) else page
