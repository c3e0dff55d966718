"""`torchmdx energy`: energy, forces and stress of structures."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmdx.commands.options import add_model_options, add_structure_files, make_calculator, structures_of
from torchmdx.runtime.files import require_new, whole_file
from torchmdx.runtime.wording import counted

if TYPE_CHECKING:
    from ase import Atoms

    from torchmdx.ase.calculator import Calculator
    from torchmdx.structures.files import Record

MOST_CHARGES = 4  # named in the first line


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "energy",
        help="print energy, forces and stress of structures",
        description="Prints the energy (eV), the largest force (eV/Å) and, for crystals, the pressure (GPa). "
        "--json prints all forces (eV/Å) and stresses (eV/Å³). -o writes the structures with energy, forces and stress "
        "under these names, as ASE reads them, for an ensemble energy_spread and forces_spread, and for a single "
        "potential that knows its uncertainty energy_uncertainty and energies_uncertainty.",
    )
    add_structure_files(parser)
    add_model_options(parser)
    parser.add_argument(
        "--index",
        default=":",
        metavar="I",
        help="indices of the structures in the file, as in ASE, such as 0 or 10:20 (default: all)",
    )
    parser.add_argument("--forces", action="store_true", help="print the force on every atom")
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead of a table")
    parser.add_argument("-o", "--output", metavar="FILE.xyz", help="write structures and results as extended XYZ")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing output file")
    parser.set_defaults(run=run, locked=("output",))


def run(options: argparse.Namespace) -> int:
    from torchmdx.models.digest import origin_of
    from torchmdx.report.predictions_file import require_ending, write_frame

    if options.output:
        require_ending(options.output, "--output")
        if not options.overwrite:
            require_new(options.output)
    given = structures_of(options)
    largest = max(len(record.atoms) for _, record in given.records)
    calculator = make_calculator(options, largest, uncertainty=True)
    origin, failed = origin_of(calculator.potential), len(given.unreadable)
    rows: list[dict[str, Any]] = []
    with whole_file(Path(options.output)) if options.output else nullcontext() as file:
        for name, group in groupby(given.records, key=lambda pair: pair[0]):
            records = [record for _, record in group]
            if not options.json:
                print(f"{_what_was_read(name, records)}; {origin}")
            for record in records:
                row = _row(record, calculator, alone=len(given.records) == 1)
                if len({name for name, _ in given.records}) > 1:
                    row["file"] = name
                rows.append(row | origin.info)
                failed += "error" in row
                if file is not None and "error" not in row:
                    write_frame(file, record.atoms, _results(rows[-1]))
                if not options.json:
                    _print_row(len(rows) - 1, record.atoms, row, options.forces, head=record is records[0])
                    if "error" not in row:
                        _print_tails(calculator, record)
    if options.json:
        print(json.dumps(rows))
    if options.output:
        done = sum("error" not in row for row in rows)
        print(f"wrote {options.output}: {counted(done, 'structure')}", file=sys.stderr)
    if failed:
        print(f"{failed} of {len(rows) + len(given.unreadable)} failed", file=sys.stderr)
    return 1 if failed else 0


def _row(record: Record, calculator: Calculator, *, alone: bool) -> dict[str, Any]:
    """The results of a structure, or the reason why it could not be evaluated. Raises if it is the only one."""
    from torchmdx.step.results import StepError

    atoms = record.atoms
    atoms.calc = calculator
    told = {"charge": record.charge, "charge_from": record.charge_from}
    try:
        return _evaluate(atoms) | told
    except (ValueError, TypeError, StepError) as error:
        if alone:
            raise
        return {"formula": atoms.get_chemical_formula(), "num_atoms": len(atoms), **told, "error": str(error)}


def _what_was_read(file: str, records: list[Record]) -> str:
    """Such as "ions.sdf: 2 of 6 structures, charge 0 (the default), charge +1 (sum of formal charges)"."""
    count = records[0].count
    number = str(count) if len(records) == count else f"{len(records)} of {count}"
    charges = list(dict.fromkeys(record.charge_text for record in records))
    shown = charges if len(charges) <= MOST_CHARGES else [*charges[:MOST_CHARGES], "..."]
    return f"{file}: {number} structure{'s' * (count > 1)}, {', '.join(shown)}"


def _results(row: dict[str, Any]) -> dict[str, Any]:
    """What was computed, and the charge, as numbers and arrays."""
    import numpy as np

    others = ("formula", "num_atoms", "charge_from")
    return {
        name: np.array(value) if isinstance(value, list) else value for name, value in row.items() if name not in others
    }


def _evaluate(atoms: Atoms) -> dict[str, Any]:
    row: dict[str, Any] = {"formula": atoms.get_chemical_formula(), "num_atoms": len(atoms)}
    if atoms.cell.rank == 3 and atoms.pbc.all():
        row["stress"] = atoms.get_stress(voigt=False, apply_constraint=False).tolist()
    row["energy"] = atoms.get_potential_energy()
    row["forces"] = atoms.get_forces(apply_constraint=False).tolist()
    results = atoms.calc.results
    if "energy_spread" in results:
        row |= {"energy_spread": results["energy_spread"], "forces_spread": results["forces_spread"].tolist()}
    if "energy_uncertainty" in results:
        of_atoms = results["energies_uncertainty"].tolist()
        row |= {"energy_uncertainty": results["energy_uncertainty"], "energies_uncertainty": of_atoms}
    return row


def _print_tails(calculator: Calculator, record: Record) -> None:
    """What the cutoff of a dispersion prior leaves out."""
    from torchmdx.evaluation.properties.dispersion_tail import dispersion_tails
    from torchmdx.structures.system import System
    from torchmdx.structures.units import GPA

    for tail in dispersion_tails(calculator.potential, System.from_ase(record.atoms)):
        print(
            f"     {tail.prior} beyond {tail.cutoff:g} Å: about {tail.energy:.4f} eV and {tail.pressure / GPA:.4f} GPa "
            "are not included"
        )


def _print_row(number: int, atoms: Atoms, row: dict[str, Any], with_forces: bool, *, head: bool) -> None:
    import numpy as np

    from torchmdx.structures.units import GPA

    columns: list[tuple[str, str]] = []
    if "energy_spread" in row:
        most = max(row["forces_spread"], default=0.0)
        columns = [(f"{'its spread':>12}", f"{row['energy_spread']:>12.6f}")]
        columns += [(f"{'max force spread':>18}", f"{most:>18.6f}")]
    elif "energy_uncertainty" in row:
        most = max(row["energies_uncertainty"], default=0.0)
        columns = [(f"{'uncertainty':>12}", f"{row['energy_uncertainty']:>12.6f}")]
        columns += [(f"{'most of an atom':>18}", f"{most:>18.6f}")]
    if head:
        titles = "".join(f" {title}" for title, _ in columns)
        print(f"{'#':>4} {'formula':<20} {'energy / eV':>18} {'max force / eV/Å':>18} {'pressure / GPa':>15}{titles}")
    if "error" in row:
        print(f"{number:>4} {row['formula']:<20} failed: {row['error']}")
        return
    largest = np.linalg.norm(np.reshape(row["forces"], (-1, 3)), axis=1).max(initial=0.0)
    pressure = f"{-np.trace(row['stress']) / 3 / GPA:15.4f}" if "stress" in row else f"{'-':>15}"
    doubts = "".join(f" {value}" for _, value in columns)
    print(f"{number:>4} {row['formula']:<20} {row['energy']:>18.8f} {largest:>18.6f} {pressure}{doubts}")
    if with_forces:
        for symbol, force in zip(atoms.symbols, row["forces"], strict=True):
            print("     {:<3} {:>14.8f} {:>14.8f} {:>14.8f}".format(symbol, *force))
