"""`torchmdx evaluate`: errors of a potential on labelled structures."""

from __future__ import annotations

import argparse
import functools
import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmdx.commands.options import add_device, add_model_option, coulomb_treatment, model_of, with_chosen_head
from torchmdx.commands.reading_options import add_reading_options, given_reading_options, reading_of
from torchmdx.runtime.files import require_new, whole_file
from torchmdx.runtime.wording import counted

if TYPE_CHECKING:
    from torchmdx.models.origin import Origin
    from torchmdx.report.evaluation import EvaluatedSets

EPILOG = """\
Each file is reported as a separate set; more than six files are combined into one. With --split, the sets are the
parts of a recorded split, such as the split.json of a training run. Files are first converted to a store in TMPDIR;
convert large ones once, with `torchmdx data convert`.

    torchmdx evaluate test.xyz
    torchmdx evaluate run/best.safetensors test.xyz -o report
    torchmdx evaluate run/best.safetensors data --split run/split.json --part test --json
    torchmdx evaluate ensemble test.xyz -o report --predictions predicted.xyz

--predictions writes extended XYZ with the labels as energy, forces and stress, and predicted_energy (eV),
predicted_forces (eV/Å), predicted_stress (eV/Å³), charge, set, file and frame; of an ensemble also energy_spread (eV)
and forces_spread (eV/Å), of a single potential that knows them energy_uncertainty and energies_uncertainty (eV).
"""
PARTS = ("train", "validation", "test")


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "evaluate",
        help="errors of a potential on labelled structures, as a table and a report",
        description="Predicts energies, forces and stress of labelled structures, and prints the errors.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="labelled structures: files that `torchmdx data convert` reads, or stores; the first may be the potential",
    )
    add_model_option(parser, several=True)
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        help="directory of the report: index.html, PNG files, errors.json (default: no report)",
    )
    parser.add_argument(
        "--predictions", metavar="FILE.xyz", help="write labels and predictions of every frame as extended XYZ"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing report and predictions")
    parser.add_argument(
        "--units",
        choices=("meV", "kcal"),
        default="meV",
        help="energy unit of the errors: meV, or kcal/mol (default: meV)",
    )
    parser.add_argument("--split", metavar="FILE", help="evaluate the parts of a recorded split (.json)")
    parser.add_argument(
        "--part", action="append", choices=PARTS, help="part of the split; may be repeated (default: all)"
    )
    add_device(parser)
    parser.add_argument(
        "--dtype", choices=("float32", "float64"), default="float32", help="precision of the network (default: float32)"
    )
    parser.add_argument("--json", action="store_true", help="print every number as JSON instead of a table")
    add_reading_options(parser)
    parser.set_defaults(run=run, locked=("output", "predictions"))


def run(options: argparse.Namespace) -> int:
    from torchmdx.datasets.store import Store
    from torchmdx.report.predictions_file import require_ending
    from torchmdx.report.scales import scales
    from torchmdx.report.sources import Sources
    from torchmdx.report.style import require_matplotlib
    from torchmdx.report.write import PAGE, numbers_of, write_evaluation

    options.model, options.files = _potential_and_data(options)
    if options.part and not options.split:
        raise ValueError(f"--part {options.part[0]} needs --split FILE")
    useless = given_reading_options(options)
    if useless and all(Store.is_store(file) for file in options.files):
        raise ValueError(f"{useless[0]} applies to files, but all inputs are stores")
    if options.output and (Path(options.output) / PAGE).exists() and not options.overwrite:
        raise FileExistsError(
            f"{options.output!r} already holds a report: use --overwrite, or choose another directory"
        )
    if options.predictions:
        require_ending(options.predictions, "--predictions")
        if not options.overwrite:
            require_new(options.predictions)
    if options.output:  # fail before the evaluation, not after it
        require_matplotlib()
        Path(options.output).mkdir(parents=True, exist_ok=True)
    say = functools.partial(print, file=sys.stderr)
    with Sources(reading_of(options), say=say) as sources:
        sets = (
            sources.split(options.files, options.split, options.part or ())
            if options.split
            else sources.sets(options.files)
        )
        found, origin = _evaluate(options, sets)
        print(f"potential: {origin}", file=sys.stderr)
        for warning in sources.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        units = scales(options.units == "kcal")
        if options.json:
            said = {**origin.info, "verdict": found.verdicts(units), "hints": found.hints()}
            print(json.dumps({**said, "sets": numbers_of(found, units)}, indent=1, ensure_ascii=False))
        else:
            _print(found, units)
        if options.output:
            title = f"{origin} on {_data_name(options, sets)}"
            page = write_evaluation(Path(options.output), found, kcal=options.units == "kcal", title=title)
            print(f"report: {page}", file=sys.stderr)
    return 0


def _potential_and_data(options: argparse.Namespace) -> tuple[list[str] | None, list[str]]:
    """--model, or the first file if it is a potential; and the remaining files."""
    from torchmdx.checkpoints.locate import is_potential

    model, files = options.model, options.files
    if model is None and is_potential(files[0]):
        model, files = [files[0]], files[1:]
    if not files:
        assert model is not None
        raise ValueError(f"evaluate needs labelled structures, got only the potential {model[0]!r}")
    return with_chosen_head(model, options.head), files


def _data_name(options: argparse.Namespace, sets: Any) -> str:
    """The sets, which are files, or the files and the parts of their split."""
    if not options.split:
        return ", ".join(sets)
    return f"{', '.join(Path(file).name or file for file in options.files)} ({', '.join(sets)})"


def _evaluate(options: argparse.Namespace, sets: Any) -> tuple[EvaluatedSets, Origin]:
    import torch

    from torchmdx.checkpoints.save_load import load
    from torchmdx.models.digest import origin_of
    from torchmdx.models.ensemble import members_of
    from torchmdx.report.evaluation import evaluate_sets
    from torchmdx.report.predictions_file import PredictionsFile
    from torchmdx.runtime.devices import choose_device
    from torchmdx.runtime.progress_line import ProgressLine, bar

    line = ProgressLine(sys.stderr)

    def advanced(name: str, done: int, number: int) -> None:
        if done == number or line.due():
            parts = [bar(done / number)] * line.on_terminal + [f"{done / number:4.0%}", f"{done:,}/{number:,}", name]
            line.draw("  ".join(parts))

    device, dtype = choose_device(options.device), getattr(torch, options.dtype)
    potential = load(model_of(options), **coulomb_treatment(options))
    if _periodic(sets):
        for doubt in dict.fromkeys(doubt for member in members_of(potential) for doubt in member.prior_doubts(True)):
            warnings.warn(doubt, stacklevel=2)
    origin = origin_of(potential)
    settings: dict[str, Any] = dict(device=device, dtype=dtype, progress=advanced)
    try:
        if not options.predictions:
            return evaluate_sets(potential, sets, **settings), origin
        with whole_file(Path(options.predictions)) as file:
            written = PredictionsFile(file, origin.info)
            # Predicted stress is of interest without labels too.
            found = evaluate_sets(potential, sets, **settings, stress=_periodic(sets) or None, take=written.add)
    finally:
        line.finish()
    print(f"predictions: {options.predictions}, {counted(written.num_frames, 'frame')}", file=sys.stderr)
    return found, origin


def _periodic(sets: Any) -> bool:
    """Whether a frame is periodic in all directions."""
    return any(store.periodic[indices].any() for store, indices in sets.values())


def _print(found: EvaluatedSets, units: Any) -> None:
    from torchmdx.report.tables import summary

    table = summary(found.errors, units)
    rows = [row for row in (table.head, *table.rows) if len(row) > 1]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.head))]
    for row in (table.head, *table.rows):
        if len(row) == 1:
            print(f"\n{row[0]}")
        else:
            cells = [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
            print("  ".join([f"{row[0]:<{widths[0]}}", *cells]))
    for sentence in (*found.verdicts(units), *found.hints()):
        print(f"\n{sentence}")
