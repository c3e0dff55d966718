"""`torchmdx label`: computes energies and forces for training with any ASE calculator."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmdx.datasets.labelling import METHODS

if TYPE_CHECKING:
    from torchmdx.datasets.labelling.run import Summary
    from torchmdx.datasets.labelling.sampling import Sampling

EPILOG = """\
Frames keep their order. A failed frame is listed in OUTPUT.failed.csv, with its file and index, and the run continues.
After an interruption, the same command continues from OUTPUT.journal; no finished frame is lost or repeated. The exit
status is 0 if every frame was labelled, 1 if some failed, 130 after Ctrl-C.

    torchmdx label frames.xyz -o labelled.xyz --calculator gfn2-xtb
    torchmdx label --smiles CCO --sample normal-modes --count 300 --temperature 500 -o ethanol.xyz --calculator gfn2-xtb
"""
# Options of sampling, and the methods they apply to.
FOR_METHODS = {
    "conformers": ("normal-modes", "md", "rattle"),
    "temperature": ("normal-modes", "md"),
    "rattle": ("rattle",),
    "timestep": ("md",),
    "spacing": ("md",),
    "equilibration": ("md",),
    "friction": ("md",),
}
MOST_LISTED = 10  # failures and notes printed


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "label",
        help="compute energies and forces for training with any ASE calculator",
        description="Computes energies and forces of structures in parallel. With --sample, also generates the "
        "structures.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="structure files that ASE reads, .smi files of SMILES, or glob patterns",
    )
    parser.add_argument(
        "-o", "--output", required=True, metavar="OUTPUT", help="extended XYZ file to write (.xyz or .extxyz)"
    )
    parser.add_argument(
        "--index",
        default=":",
        metavar="I",
        help="indices of the structures in each file, as in ASE, such as 0 or 10:20 (default: all)",
    )
    _add_calculator_options(parser)
    _add_run_options(parser)
    _add_sampling_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from torchmdx.datasets.labelling.calculators import Choice, parse_options
    from torchmdx.datasets.labelling.run import Crew, label
    from torchmdx.datasets.labelling.workers import usable_cores
    from torchmdx.runtime.interrupt import Interrupts

    sampling = _sampling(options)
    choice = Choice(options.calculator, parse_options(options.calculator_option))
    began = time.perf_counter()
    with Interrupts() as interrupts:
        files, smiles = _sources(options, sampling)
        if options.dask is not None and options.workers is not None:
            raise ValueError(f"--workers can't be combined with --dask; got --workers {options.workers}")
        workers = choice.num_workers or usable_cores() if options.workers is None else options.workers
        crew = Crew(workers, options.timeout, sys.stderr, lambda: interrupts.received is not None, options.dask)
        summary = label(
            files,
            Path(options.output),
            choice,
            smiles=smiles,
            sampling=sampling,
            crew=crew,
            retry_failed=options.retry_failed,
            overwrite=options.overwrite,
            keep_files=options.keep_files,
        )
    if interrupts.received is not None and not summary.is_read:
        print(f"torchmdx: stopped by {interrupts.received.name} while it read; {_next(summary)}", file=sys.stderr)
        return interrupts.status
    _print(summary, time.perf_counter() - began)
    if interrupts.received is not None and not summary.complete:
        print(f"torchmdx: stopped by {interrupts.received.name}; {_next(summary)}", file=sys.stderr)
        return interrupts.status
    return 1 if summary.failures else 0


def _next(summary: Summary) -> str:
    """What the same command does next."""
    journal = summary.paths.journal
    return f"the same command continues from {journal}" if journal.exists() else "the same command starts again"


def _add_calculator_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("calculator")
    group.add_argument(
        "--calculator",
        required=True,
        metavar="NAME",
        help="gfn2-xtb, gfn1-xtb (both tblite), pyscf, emt, lj, or module:name of a callable that returns an ASE "
        "calculator",
    )
    group.add_argument(
        "--calculator-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="argument of the calculator, such as accuracy=0.01 or basis=def2-tzvpp; may be repeated",
    )
    group.add_argument(
        "--charge",
        type=float,
        metavar="Q",
        help="total charge of every structure, e (default: from the file, else 0)",
    )
    group.add_argument(
        "--multiplicity",
        type=int,
        metavar="M",
        help="spin multiplicity 2S+1 of every structure (default: from the file, else the lowest possible)",
    )


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("run")
    group.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="number of processes, with one thread each (default: one per core, or per GPU if the calculator uses it)",
    )
    group.add_argument(
        "--dask",
        metavar="ADDRESS",
        help="use the workers of this dask.distributed scheduler instead: tcp://HOST:PORT, or a scheduler file",
    )
    group.add_argument("--timeout", type=float, metavar="S", help="time limit of one evaluation, s (default: none)")
    group.add_argument(
        "--keep-files",
        choices=("all", "failed"),
        default="all",
        help="which folders of calculators that work through files to keep (default: all)",
    )
    group.add_argument("--retry-failed", action="store_true", help="retry the frames that failed in an earlier run")
    group.add_argument(
        "--overwrite", action="store_true", help="start from scratch and replace the outputs of an earlier run"
    )


def _add_sampling_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling", "Generates geometries from each structure and each SMILES.")
    group.add_argument(
        "--sample", choices=METHODS, help="method (default: label the structures as they are); see docs/label.md"
    )
    group.add_argument("--smiles", action="append", default=[], metavar="SMILES", help="molecule; may be repeated")
    group.add_argument("--count", type=int, metavar="N", help="geometries per starting structure (default: 100)")
    group.add_argument("--seed", type=int, metavar="S", help="random seed (default: 0)")
    group.add_argument("--conformers", type=int, metavar="K", help="starting structures per SMILES (default: 1)")
    group.add_argument("--temperature", type=float, metavar="K", help="normal-modes, md: temperature, K (default: 300)")
    group.add_argument(
        "--rattle", type=float, metavar="Å", help="rattle: standard deviation of displacements, Å (default: 0.05)"
    )
    group.add_argument("--timestep", type=float, metavar="FS", help="md: timestep, fs (default: 0.5)")
    group.add_argument("--spacing", type=int, metavar="N", help="md: steps between geometries (default: 50)")
    group.add_argument(
        "--equilibration", type=int, metavar="N", help="md: steps before the first geometry (default: 1000)"
    )
    group.add_argument(
        "--friction", type=float, metavar="F", help="md: friction of the Langevin thermostat, 1/ps (default: 10)"
    )


def _sampling(options: argparse.Namespace) -> Sampling | None:
    """The requested sampling. Raises ValueError for options that have no effect."""
    from torchmdx.datasets.labelling.sampling import Sampling

    names = ("count", "seed", *FOR_METHODS)
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    for name in given:
        fitting = FOR_METHODS.get(name, METHODS)
        if options.sample not in fitting:
            got = f"--sample {options.sample}" if options.sample else "no --sample"
            raise ValueError(f"--{name} applies to --sample {' or '.join(fitting)}, got {got}")
    return Sampling(method=options.sample, **given) if options.sample else None


def _sources(options: argparse.Namespace, sampling: Sampling | None) -> tuple[Any, Sequence[str]]:
    """Structure files and SMILES. Raises ValueError if they do not match the options."""
    from torchmdx.datasets.labelling.sources import SMILES_SUFFIX, StructureFiles, find_files, read_smiles

    if not (options.files or options.smiles):
        raise ValueError("label needs structure files or --smiles, got neither")
    found = find_files(options.files)
    paths = tuple(path for path in found if path.suffix.lower() != SMILES_SUFFIX)
    smiles = [text for path in found if path.suffix.lower() == SMILES_SUFFIX for text in read_smiles(path)]
    smiles += options.smiles
    if sampling is not None and sampling.method == "conformers" and paths:
        raise ValueError(f"--sample conformers needs SMILES, got the structure file {str(paths[0])!r}")
    if options.conformers is not None and not smiles:
        raise ValueError("--conformers applies to SMILES, got structure files only")
    if options.charge is not None and smiles:
        raise ValueError(
            f"--charge applies to structure files, but a SMILES defines its charge; got --charge {options.charge:g}"
        )
    return StructureFiles(paths, options.index, options.charge, options.multiplicity), smiles


def _print(summary: Summary, seconds: float) -> None:
    from torchmdx.runtime.progress_line import duration

    for note in summary.notes[:MOST_LISTED]:
        print(f"note: {note}")
    if len(summary.notes) > MOST_LISTED:
        print(f"note: {len(summary.notes) - MOST_LISTED} more such notes")
    failed = f", {len(summary.failures):,} failed" if summary.failures else ""
    print(f"{summary.num_labelled:,} of {summary.num_frames:,} frames labelled{failed}; {duration(seconds)}")
    for failure in summary.failures[:MOST_LISTED]:
        print(f"  {failure.origin}: {failure.reason}")
    if summary.paths.log.exists():
        print(f"output of the worker processes: {summary.paths.log}")
    if not summary.complete:
        return
    if summary.failures:
        print(f"all failures: {summary.paths.failures}; --retry-failed retries them")
    if summary.num_labelled:
        print(f"wrote {summary.paths.output}")
