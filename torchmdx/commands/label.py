"""`torchmdx label`: energies and forces of structures, with any ASE calculator, for training."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmdx.labelling.sampling import METHODS, Sampling

if TYPE_CHECKING:
    from torchmdx.labelling.run import Summary

EPILOG = """\
Frames keep their order. A failed frame is noted, with its file and number, in OUTPUT.failed.csv, and the run goes on.
Whatever stops a run, the same command goes on from OUTPUT.journal: no frame is lost, none is done twice. The exit
status is 0 when every frame has labels, 1 when some failed, 130 after Ctrl-C.

    torchmdx label frames.xyz -o labelled.xyz --calculator gfn2-xtb
    torchmdx label --smiles CCO --sample normal-modes --count 300 --temperature 500 -o ethanol.xyz --calculator gfn2-xtb
"""
# Options of sampling, and the methods that they are for.
FOR_METHODS = {
    "conformers": ("normal-modes", "md", "rattle"),
    "temperature": ("normal-modes", "md"),
    "rattle": ("rattle",),
    "timestep": ("md",),
    "spacing": ("md",),
    "equilibration": ("md",),
    "friction": ("md",),
}
MOST_LISTED = 10  # failures and remarks on the screen


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "label",
        help="energies and forces of structures, with any ASE calculator, for training",
        description="Labels structures in parallel processes, and with --sample makes the structures too.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="structures in any format of ASE, or SMILES in .smi; patterns too"
    )
    parser.add_argument(
        "-o", "--output", required=True, metavar="OUTPUT", help="extended XYZ to write: .xyz or .extxyz"
    )
    parser.add_argument("--index", default=":", help="which structures of each file, as in ASE (default: all)")
    _add_calculator_options(parser)
    _add_run_options(parser)
    _add_sampling_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from torchmdx.labelling.calculators import Choice, parse_options
    from torchmdx.labelling.run import Crew, label
    from torchmdx.labelling.workers import usable_cores
    from torchmdx.runtime.interrupt import Interrupts

    sampling = _sampling(options)
    files, smiles = _sources(options, sampling)
    choice = Choice(options.calculator, parse_options(options.calculator_option))
    began = time.perf_counter()
    with Interrupts() as interrupts:
        workers = usable_cores() if options.workers is None else options.workers
        crew = Crew(workers, options.timeout, sys.stderr, lambda: interrupts.received is not None)
        summary = label(
            files,
            Path(options.output),
            choice,
            smiles=smiles,
            sampling=sampling,
            crew=crew,
            retry_failed=options.retry_failed,
            overwrite=options.overwrite,
        )
    _print(summary, time.perf_counter() - began)
    if interrupts.received is not None and not summary.complete:
        print(
            f"torchmdx: stopped by {interrupts.received.name}; the same command goes on from {summary.paths.journal}",
            file=sys.stderr,
        )
        return interrupts.status
    return 1 if summary.failures else 0


def _add_calculator_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("calculator")
    group.add_argument(
        "--calculator",
        required=True,
        metavar="NAME",
        help="gfn2-xtb, gfn1-xtb (tblite), emt, lj, or module:name of anything that returns an ASE calculator",
    )
    group.add_argument(
        "--calculator-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an argument of the calculator, such as accuracy=0.01; may be repeated",
    )
    group.add_argument(
        "--charge",
        type=float,
        metavar="Q",
        help="total charge of every structure in e (default: what the file says, else 0)",
    )
    group.add_argument(
        "--multiplicity",
        type=int,
        metavar="M",
        help="2S+1 of every structure (default: what the file says, else the lowest possible)",
    )


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("run")
    group.add_argument(
        "--workers", type=int, metavar="N", help="processes, of one thread each (default: one for each core)"
    )
    group.add_argument(
        "--timeout", type=float, metavar="S", help="seconds that one evaluation may take (default: any time)"
    )
    group.add_argument("--retry-failed", action="store_true", help="do what failed in an earlier run again")
    group.add_argument("--overwrite", action="store_true", help="start again, and replace what an earlier run left")


def _add_sampling_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling", "geometries made of each structure and each SMILES")
    group.add_argument("--sample", choices=METHODS, help="how: see docs/label.md")
    group.add_argument("--smiles", action="append", default=[], metavar="SMILES", help="a molecule; may be repeated")
    group.add_argument("--count", type=int, metavar="N", help="geometries of each starting structure (default: 100)")
    group.add_argument("--seed", type=int, metavar="S", help="of all that is random (default: 0)")
    group.add_argument("--conformers", type=int, metavar="K", help="starting structures of each SMILES (default: 1)")
    group.add_argument("--temperature", type=float, metavar="K", help="normal-modes, md: in K (default: 300)")
    group.add_argument("--rattle", type=float, metavar="D", help="rattle: standard deviation, Å (default: 0.05)")
    group.add_argument("--timestep", type=float, metavar="FS", help="md: in fs (default: 0.5)")
    group.add_argument("--spacing", type=int, metavar="N", help="md: steps between geometries (default: 50)")
    group.add_argument("--equilibration", type=int, metavar="N", help="md: steps before the first (default: 1000)")
    group.add_argument("--friction", type=float, metavar="F", help="md: of the Langevin thermostat, 1/ps (default: 10)")


def _sampling(options: argparse.Namespace) -> Sampling | None:
    """The sampling asked for. Raises ValueError for options that would do nothing."""
    names = ("count", "seed", *FOR_METHODS)
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    for name in given:
        fitting = FOR_METHODS.get(name, METHODS)
        if options.sample not in fitting:
            got = f"--sample {options.sample}" if options.sample else "no --sample"
            raise ValueError(f"--{name} is for --sample {' or '.join(fitting)}, got {got}")
    return Sampling(method=options.sample, **given) if options.sample else None


def _sources(options: argparse.Namespace, sampling: Sampling | None) -> tuple[Any, Sequence[str]]:
    """Files of structures, and SMILES. Raises ValueError where they do not fit the options."""
    from torchmdx.labelling.sources import SMILES_SUFFIX, StructureFiles, find_files, read_smiles

    if not (options.files or options.smiles):
        raise ValueError("label needs files of structures, or --smiles, got neither")
    found = find_files(options.files)
    paths = tuple(path for path in found if path.suffix.lower() != SMILES_SUFFIX)
    smiles = [text for path in found if path.suffix.lower() == SMILES_SUFFIX for text in read_smiles(path)]
    smiles += options.smiles
    if sampling is not None and sampling.method == "conformers" and paths:
        raise ValueError(f"--sample conformers needs SMILES, got the structures of {str(paths[0])!r}")
    if options.conformers is not None and not smiles:
        raise ValueError("--conformers is for SMILES, got structures only")
    if options.charge is not None and smiles:
        raise ValueError(f"a SMILES says its charge itself, got --charge {options.charge:g}")
    return StructureFiles(paths, options.index, options.charge, options.multiplicity), smiles


def _print(summary: Summary, seconds: float) -> None:
    from torchmdx.runtime.progress_line import duration

    for note in summary.notes[:MOST_LISTED]:
        print(f"note: {note}")
    if len(summary.notes) > MOST_LISTED:
        print(f"note: {len(summary.notes) - MOST_LISTED} more like these")
    failed = f", {len(summary.failures):,} failed" if summary.failures else ""
    print(f"{summary.num_labelled:,} of {summary.num_frames:,} frames labelled{failed}; {duration(seconds)}")
    for failure in summary.failures[:MOST_LISTED]:
        print(f"  {failure.origin}: {failure.reason}")
    if summary.paths.log.exists():
        print(f"what worker processes printed is in {summary.paths.log}")
    if not summary.complete:
        return
    if summary.failures:
        print(f"all failures are in {summary.paths.failures}; --retry-failed tries them again")
    if summary.num_labelled:
        print(f"wrote {summary.paths.output}")
