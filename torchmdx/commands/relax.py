"""`torchmdx relax`: moves the atoms, and optionally the cell, to an energy minimum."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmdx.commands import fixed_symmetry
from torchmdx.commands.cell_options import add_cell_options, cell_filter, restore_fixed_vectors, space_of
from torchmdx.commands.options import add_model_options, add_structure_files, make_calculator, structure_of
from torchmdx.commands.relax_checks import page_of, require_options, require_outputs, require_structure
from torchmdx.commands.relax_many import add_many_options, is_many, run_many
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
        "are kept. Ctrl-C stops after the current step and writes the current structure. Several files, a "
        "folder, or with --index : all structures of a file are relaxed in batches; see the last group of options.",
    )
    add_structure_files(parser)
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
        help="lbfgs (default); fire, slower but robust far from a minimum; for one structure also bfgs, for up to a "
        "few hundred atoms, and mdmin",
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
    group = parser.add_argument_group("crystals")
    add_cell_options(group)
    fixed_symmetry.add_symmetry_options(group)
    add_many_options(parser)
    parser.set_defaults(run=run, locked=("output", "trajectory"))


def run(options: argparse.Namespace) -> int:
    require_options(options)
    options.file = options.files[0]
    if is_many(options):
        return run_many(options)
    options.optimizer = options.optimizer or "lbfgs"
    require_outputs(options)
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
    require_structure(options, atoms)
    print(f"{options.file}: {atoms.get_chemical_formula()}, {len(atoms)} atoms, {record.charge_text}")
    symmetry = None
    if options.fix_symmetry:
        symmetry = fixed_symmetry.fix_symmetry(atoms, options.symmetry_precision or fixed_symmetry.DEFAULT_PRECISION)
        print(f"space group {symmetry.group}")
    # Forces in float32 are not accurate enough for a minimum as sharp as this.
    atoms.calc = make_calculator(options, len(atoms), precise=options.fmax < SHARP)
    from torchmdx.models.digest import origin_of
    from torchmdx.report.view.recording import ThinnedSteps

    origin = origin_of(atoms.calc.potential)
    atoms.info |= origin.info
    print(f"potential {origin}")
    pressure, recording = (options.pressure or 0.0) * GPA, ThinnedSteps(pressure=_external(options))
    before = State.of(atoms, pressure, options.cell)
    cell = atoms.cell.array.copy()
    outcome = _relax(atoms, options, symmetry, recording, interrupts)
    restore_fixed_vectors(atoms, cell, space_of(options))
    if symmetry is not None:
        symmetry.free(atoms)
    _write(atoms, options.output)
    _write_page(recording, options, str(origin))
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
    from ase.io.trajectory import Trajectory

    from torchmdx.commands import optimizers

    target: Any = atoms
    if options.cell:
        target = cell_filter(atoms, (options.pressure or 0.0) * GPA, space_of(options))
    converged = False
    with optimizers.OPTIMIZERS[options.optimizer](target, logfile="-") as optimizer:
        optimizer.attach(lambda: recording.add(_frame(atoms, symmetry), _cell_force(target) if options.cell else None))
        if options.trajectory:
            trajectory = optimizer.closelater(Trajectory(options.trajectory, "w"))
            optimizer.attach(lambda: trajectory.write(_frame(atoms, symmetry)))
        for reached in optimizer.irun(fmax=options.fmax, steps=options.steps):
            converged = bool(reached)
            if interrupts.received is not None:
                break
    return RelaxOutcome(converged, optimizer.nsteps, float(np.linalg.norm(target.get_forces(), axis=1).max()))


def _external(options: argparse.Namespace) -> float | None:
    """The external pressure of a moving cell, GPa."""
    return (options.pressure or 0.0) if options.cell else None


def _cell_force(target: Any) -> float:
    """The largest force on a cell in a filter of ASE, per atom, eV."""
    import numpy as np

    return float(np.linalg.norm(target.get_forces()[-3:], axis=1).max())


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


def _write_page(recording: ThinnedSteps, options: argparse.Namespace, origin: str) -> None:
    from torchmdx.report.view.run_page import write_relaxation_page

    page = page_of(options)
    if page is not None and write_relaxation_page(
        page, recording, title=f"{Path(options.file).name}: relaxation with {origin}"
    ):
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
