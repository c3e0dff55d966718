"""`torchmdx evaluate`: errors of a potential on labelled structures."""

from __future__ import annotations

import argparse
import functools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmdx.commands.options import add_model_option
from torchmdx.commands.reading_options import add_reading_options, given_reading_options, reading_of
from torchmdx.potentials import DEFAULT_POTENTIAL

if TYPE_CHECKING:
    from torchmdx.report.evaluation import EvaluatedSets

EPILOG = """\
Each file is reported as a separate set; more than six files are combined into one. With --split, the sets are the
parts of a recorded split, such as the split.json of a training run. Files are first converted to a store in TMPDIR;
convert large ones once, with `torchmdx data convert`.

    torchmdx evaluate test.xyz
    torchmdx evaluate run/best.safetensors test.xyz -o report
    torchmdx evaluate run/best.safetensors data --split run/split.json --part test --json
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
    add_model_option(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        help="directory of the report: index.html, PNG files, errors.json (default: no report)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing report")
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
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:1 (default: cuda if available)")
    parser.add_argument(
        "--dtype", choices=("float32", "float64"), default="float32", help="precision of the network (default: float32)"
    )
    parser.add_argument("--json", action="store_true", help="print every number as JSON instead of a table")
    add_reading_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from torchmdx.report.scales import scales
    from torchmdx.report.sources import Sources, is_store
    from torchmdx.report.style import require_matplotlib
    from torchmdx.report.write import PAGE, numbers_of, write_evaluation

    options.model, options.files = _potential_and_data(options)
    if options.part and not options.split:
        raise ValueError(f"--part {options.part[0]} needs --split FILE")
    useless = given_reading_options(options)
    if useless and all(is_store(file) for file in options.files):
        raise ValueError(f"{useless[0]} applies to files, but all inputs are stores")
    if options.output and (Path(options.output) / PAGE).exists() and not options.overwrite:
        raise FileExistsError(
            f"{options.output!r} already holds a report: use --overwrite, or choose another directory"
        )
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
        found = _evaluate(options, sets)
        for warning in sources.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        units = scales(options.units == "kcal")
        if options.json:
            print(json.dumps({"hints": found.hints(), "sets": numbers_of(found, units)}, indent=1, ensure_ascii=False))
        else:
            _print(found, units)
        if options.output:
            title = f"{Path(options.model or DEFAULT_POTENTIAL).name} on {', '.join(sets)}"
            page = write_evaluation(Path(options.output), found, kcal=options.units == "kcal", title=title)
            print(f"report: {page}", file=sys.stderr)
    return 0


def _potential_and_data(options: argparse.Namespace) -> tuple[str | None, list[str]]:
    """--model, or the first file if its ending or name is that of a potential; and the remaining files."""
    from torchmdx.checkpoints.locate import ENDINGS, known_names

    model, files = options.model, options.files
    first_is_one = Path(files[0]).suffix in ENDINGS or files[0] in known_names()
    if first_is_one and model is None:
        model, files = files[0], files[1:]
    if not files:
        raise ValueError(f"evaluate needs labelled structures, got only the potential {model!r}")
    return model, files


def _evaluate(options: argparse.Namespace, sets: Any) -> EvaluatedSets:
    import torch

    from torchmdx.checkpoints.save_load import load_one
    from torchmdx.report.evaluation import evaluate_sets
    from torchmdx.runtime.devices import choose_device
    from torchmdx.runtime.progress_line import ProgressLine, bar

    line = ProgressLine(sys.stderr)

    def advanced(name: str, done: int, number: int) -> None:
        if done == number or line.due():
            parts = [bar(done / number)] * line.on_terminal + [f"{done / number:4.0%}", f"{done:,}/{number:,}", name]
            line.draw("  ".join(parts))

    device, dtype = choose_device(options.device), getattr(torch, options.dtype)
    potential = load_one(options.model)
    try:
        return evaluate_sets(potential, sets, device=device, dtype=dtype, progress=advanced)
    finally:
        line.finish()


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
    for hint in found.hints():
        print(f"\n{hint}")
