"""`torchmdx relax`: moves the atoms, and optionally the cell, to an energy minimum."""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmdx.commands import fixed_symmetry
from torchmdx.commands.options import add_model_options, make_calculator, structure_of
from torchmdx.commands.relax_many import add_many_options, is_many, run_many
from torchmdx.runtime.files import require_new
from torchmdx.runtime.interrupt import Interrupts
from torchmdx.structures.units import GPA

if TYPE_CHECKING:
    import numpy as np
    from ase import Atoms

    from torchmdx.report.view.recording import ThinnedSteps

SHARP = 1e-3  # eV/Å
OPTIMIZERS = ("lbfgs", "fire", "bfgs", "mdmin")


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "relax",
        help="relax a structure to an energy minimum",
        description="Relaxes a structure, with --cell also its cell, and writes the result. Constraints in the file "
        "are kept. Ctrl-C stops after the current step and writes the current structure. With --index : "
        "all structures of the file, in batches; see the last group of options.",
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
        "--index",
        default="-1",
        metavar="I",
        help="index of the structure in the file (default: -1, the last); several, such as : or 0:100, in batches",
    )
    parser.add_argument(
        "--optimizer",
        choices=OPTIMIZERS,
        help="lbfgs (default); fire, slower but robust far from a minimum, always used for several structures; bfgs, "
        "for up to a few hundred atoms; mdmin",
    )
    parser.add_argument(
        "--fmax", type=float, default=0.01, metavar="F", help="stop when all forces are below F eV/Å (default: 0.01)"
    )
    parser.add_argument("--steps", type=int, default=500, metavar="N", help="maximum number of steps (default: 500)")
    parser.add_argument("--trajectory", metavar="FILE", help="write every step to this file (.traj)")
    parser.add_argument("--overwrite", action="store_true", help="replace existing output files")
    parser.add_argument(
        "--no-page", action="store_true", help="do not write the interactive page, OUTPUT with the ending .html"
    )
    _add_cell_options(parser)
    add_many_options(parser)
    parser.set_defaults(run=run, locked=("output", "trajectory"))


def _add_cell_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("crystals")
    group.add_argument("--cell", action="store_true", help="also relax the cell")
    group.add_argument(
        "--pressure",
        type=float,
        metavar="P",
        help="with --cell: external pressure in GPa, positive under compression (default: 0)",
    )
    fixed_symmetry.add_symmetry_options(group)


def run(options: argparse.Namespace) -> int:
    _require_options(options)
    if is_many(options):
        return run_many(options)
    options.optimizer = options.optimizer or "lbfgs"
    _require_outputs(options)
    with Interrupts() as interrupts:  # while it reads as well: the structure is then written as it is
        outcome = _run(options, interrupts)
    if interrupts.received is not None:
        print(f"stopped by {interrupts.received.name}, not converged to {options.fmax} eV/Å", file=sys.stderr)
        return interrupts.status
    if not outcome.converged:
        other = "fire" if options.optimizer != "fire" else "lbfgs"
        print(
            f"not converged to {options.fmax} eV/Å in {options.steps} steps; raise --steps or --fmax, "
            f"or try --optimizer {other}",
            file=sys.stderr,
        )
        return 1
    return 0


def _run(options: argparse.Namespace, interrupts: Interrupts) -> RelaxOutcome:
    """Reads the structure, relaxes it until a signal comes, and writes it."""
    record = structure_of(options)
    atoms = record.atoms
    _require_structure(options, atoms)
    print(f"{options.file}: {atoms.get_chemical_formula()}, {len(atoms)} atoms, {record.charge_text}")
    symmetry = None
    if options.fix_symmetry:
        symmetry = fixed_symmetry.fix_symmetry(atoms, options.symmetry_precision or fixed_symmetry.DEFAULT_PRECISION)
        print(f"space group {symmetry.group}")
    # Forces in float32 are not accurate enough for a minimum as sharp as this.
    atoms.calc = make_calculator(options, len(atoms), precise=options.fmax < SHARP)
    from torchmdx.report.view.recording import ThinnedSteps

    pressure, recording = (options.pressure or 0.0) * GPA, ThinnedSteps()
    before = State.of(atoms, pressure, options.cell)
    outcome = _relax(atoms, options, symmetry, recording, interrupts)
    if symmetry is not None:
        symmetry.free(atoms)
    _write(atoms, options.output)
    _write_page(recording, options)
    _report(before, State.of(atoms, pressure, options.cell), outcome, options)
    return outcome


@dataclass(frozen=True)
class RelaxOutcome:
    """How an optimization ended. fmax: the largest force, or force on the cell per atom, as the optimizer sees it."""

    converged: bool
    num_steps: int
    fmax: float


@dataclass(frozen=True, eq=False)
class State:
    """Energy and enthalpy, eV; with a moving cell its parameters (Å, degrees), volume, Å³, and pressure, GPa."""

    energy: float
    enthalpy: float
    cell: np.ndarray
    volume: float = 0.0
    pressure: float = 0.0

    @classmethod
    def of(cls, atoms: Atoms, pressure: float, moving_cell: bool) -> State:
        """pressure: the external one, eV/Å³."""
        energy, cell = atoms.get_potential_energy(), atoms.cell.cellpar()
        if not moving_cell:
            return cls(energy, energy, cell)
        volume = atoms.get_volume()
        return cls(energy, energy + pressure * volume, cell, volume, -atoms.get_stress()[:3].mean() / GPA)

    def cell_text(self) -> str:
        lengths, angles = self.cell[:3], self.cell[3:]
        return " ".join(f"{x:.4f}" for x in lengths) + " Å " + " ".join(f"{x:.2f}" for x in angles) + "°"


def _relax(
    atoms: Atoms,
    options: argparse.Namespace,
    symmetry: fixed_symmetry.FixedSymmetry | None,
    recording: ThinnedSteps,
    interrupts: Interrupts,
) -> RelaxOutcome:
    """Moves the atoms until they converge, the steps are used up, or a signal arrives; records the steps."""
    import numpy as np
    from ase.filters import FrechetCellFilter
    from ase.io.trajectory import Trajectory

    from torchmdx.commands.optimizers import make_optimizer

    target: Any = atoms
    if options.cell:
        target = FrechetCellFilter(atoms, scalar_pressure=(options.pressure or 0.0) * GPA)
    converged = False
    with make_optimizer(options.optimizer, target) as optimizer:
        optimizer.attach(lambda: recording.add(_frame(atoms, symmetry)))
        if options.trajectory:
            trajectory = optimizer.closelater(Trajectory(options.trajectory, "w"))
            optimizer.attach(lambda: trajectory.write(_frame(atoms, symmetry)))
        for reached in optimizer.irun(fmax=options.fmax, steps=options.steps):
            converged = bool(reached)
            if interrupts.received is not None:
                break
    return RelaxOutcome(converged, optimizer.nsteps, float(np.linalg.norm(target.get_forces(), axis=1).max()))


def _frame(atoms: Atoms, symmetry: fixed_symmetry.FixedSymmetry | None) -> Atoms:
    """A copy with its results, without the constraint of symmetry, which readers would find anew."""
    from ase.calculators.calculator import all_properties
    from ase.calculators.singlepoint import SinglePointCalculator

    frame = atoms.copy()
    if symmetry is not None:
        frame.set_constraint()
    found = {name: value for name, value in atoms.calc.results.items() if name in all_properties}
    frame.calc = SinglePointCalculator(frame, **found)
    return frame


def _write(atoms: Atoms, path: str) -> None:
    """Writes the structure under another name and renames it, so that a failed write leaves an existing file."""
    import ase.io
    from ase.io.formats import filetype

    target = Path(path)
    partial = target.with_name(f".part-{target.name}")
    try:
        ase.io.write(partial, atoms, format=filetype(path, read=False))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _page_of(options: argparse.Namespace) -> Path | None:
    """The interactive page next to the output; None if it is not requested, or if the output has its name."""
    page = Path(options.output).with_suffix(".html")
    return None if options.no_page or page == Path(options.output) else page


def _write_page(recording: ThinnedSteps, options: argparse.Namespace) -> None:
    from torchmdx.report.view.run_page import write_relaxation_page

    page = _page_of(options)
    if page is not None and write_relaxation_page(page, recording, title=f"{Path(options.file).name}: relaxation"):
        print(f"wrote {page}, an interactive page of the steps")


def _report(before: State, after: State, outcome: RelaxOutcome, options: argparse.Namespace) -> None:
    """Prints the change of the cell, and in the last line of energy, largest force and volume."""
    parts = [f"energy {before.energy:.6f} -> {after.energy:.6f} eV"]
    if options.pressure:
        parts.append(f"enthalpy {before.enthalpy:.6f} -> {after.enthalpy:.6f} eV")
    if options.cell:
        print(f"cell {before.cell_text()} -> {after.cell_text()}")
        print(f"pressure {before.pressure:.3f} -> {after.pressure:.3f} GPa")
        change = 100 * (after.volume / before.volume - 1)
        parts.append(f"volume {before.volume:.3f} -> {after.volume:.3f} Å³ ({change:+.2f} %)")
    parts.append(f"fmax {outcome.fmax:.4g} eV/Å after {outcome.num_steps} steps")
    print(f"{', '.join(parts)}; wrote {options.output}")


def _require_options(options: argparse.Namespace) -> None:
    """Raises ValueError for values out of range and options without the one that they belong to."""
    if not 0 < options.fmax < math.inf:
        raise ValueError(f"--fmax must be > 0 eV/Å, got {options.fmax}")
    if options.steps < 1:
        raise ValueError(f"--steps must be >= 1, got {options.steps}")
    if options.pressure is not None:
        if not math.isfinite(options.pressure):
            raise ValueError(f"--pressure must be a finite number of GPa, got {options.pressure}")
        if not options.cell:
            raise ValueError(f"--pressure needs --cell, got --pressure {options.pressure} alone")
    if options.symmetry_precision is not None:
        if not 0 < options.symmetry_precision < math.inf:
            raise ValueError(f"--symmetry-precision must be > 0 Å, got {options.symmetry_precision}")
        if not options.fix_symmetry:
            raise ValueError("--symmetry-precision needs --fix-symmetry")


def _require_structure(options: argparse.Namespace, atoms: Atoms) -> None:
    """Raises ValueError for a structure without the cell that the options need."""
    if options.cell and not atoms.pbc.any():
        raise ValueError("--cell needs a periodic structure, got one with pbc False in all directions")
    if options.cell and atoms.cell.rank < 3:
        raise ValueError(f"--cell needs a cell with three lattice vectors, got one of rank {atoms.cell.rank}")
    if options.pressure and not atoms.pbc.all():
        raise ValueError(f"--pressure needs a structure periodic in all directions, got pbc {atoms.pbc.tolist()}")
    if options.fix_symmetry:
        fixed_symmetry.require_symmetry_support(atoms)


def _require_outputs(options: argparse.Namespace) -> None:
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
        require_new(*(str(name) for name in (path, trajectory, _page_of(options)) if name is not None))
