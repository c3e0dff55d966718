"""`torchmdx bench`: time, memory, engine and error of an evaluation on this machine, in each mode."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchmdx.commands.options import add_index, add_model_options, add_skin, make_calculator, structure_of
from torchmdx.runtime.wording import counted

SECONDS_A_DAY = 86400.0
SECONDS_TO_MEASURE = 2.0
SECONDS_A_ROW = 300.0
MOST_COMPARED = 1000  # atoms, whose forces the exact model evaluates in seconds


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="measure the time of energy and forces of a structure",
        description="Measures the time of one evaluation of energy and forces, from NumPy positions to NumPy forces, "
        "neighbour search included: in eager mode and, on a GPU, as a captured CUDA graph. The error is that of the "
        "forces against the exact model in float64, for up to 1,000 atoms. The report of the last mode "
        "follows. With --all: a table of molecules and boxes of water.",
    )
    parser.add_argument("file", metavar="FILE", nargs="?", help="structure file, in any format that ASE reads")
    add_model_options(parser, dtype="float32")
    add_index(parser)
    add_skin(parser)
    parser.add_argument(
        "--all",
        action="store_true",
        help="instead of FILE: molecules and water boxes of up to 24,000 atoms, each in a process of its own. On a GPU "
        "of the architecture sm_90 it also tests whether kernels whose blocks wait for each other may run there, and "
        "notes that for later runs",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the measurements to this file")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file of --json")
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS_A_ROW,
        metavar="S",
        help=f"with --all: time after which a structure is given up (default: {SECONDS_A_ROW:g})",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from torchmdx.commands import bench_all
    from torchmdx.runtime.files import require_new, write_whole

    if options.all == (options.file is not None):
        raise ValueError(f"bench needs a structure file or --all, got {'both' if options.all else 'neither'}")
    if options.json is not None and not options.overwrite:
        require_new(options.json)
    if options.all:
        return bench_all.run(options)
    rows = measured(options)
    if options.json is not None:
        write_whole(options.json, (json.dumps(rows, indent=1) + "\n").encode())
    return 0


def measured(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Prints the measurements of a structure, and returns them: a row for each mode."""
    import torch

    from torchmdx.models.digest import digest_of
    from torchmdx.step.captured_step import CapturedStep
    from torchmdx.step.comparison import relative_error
    from torchmdx.step.exact import exact_results
    from torchmdx.structures.system import Batch, System

    potential = make_calculator(options).potential
    record = structure_of(options)
    atoms = record.atoms
    system = System.from_ase(atoms, record.charge)
    device = potential.device
    threads = counted(torch.get_num_threads(), "thread")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {threads}"
    size = counted(len(atoms), "atom")
    print(f"{atoms.get_chemical_formula()}: {size}, {record.charge_text}; {options.dtype} on {name}")
    compared = 0 < len(atoms) <= MOST_COMPARED
    exact = exact_results(potential, Batch.from_systems([system]).to(device))["forces"].cpu() if compared else None
    heads = ("ms a step", "µs an atom", "ns/day, 1 fs", "memory / MiB", "force error")
    print(f"{'mode':<8}" + "".join(f"{head:>14}" for head in heads))
    rows: list[dict[str, Any]] = []
    for mode in ("eager", "graph") if device.type == "cuda" else ("eager",):
        step = CapturedStep(potential, system, mode=mode, skin=options.skin, precision=options.dtype)
        forces = torch.as_tensor(step(atoms.positions).forces)
        error = None if exact is None else relative_error(forces, exact)
        seconds = median_seconds(lambda step=step: step(atoms.positions, copy=False))  # type: ignore[misc]
        report = step.report()
        cells = [
            f"{seconds * 1e3:.4f}",
            f"{seconds * 1e6 / max(len(atoms), 1):.3f}",
            f"{SECONDS_A_DAY / seconds * 1e-6:.1f}",
            f"{report.memory_bytes / 2**20:.1f}" if device.type == "cuda" else "-",
            "-" if error is None else f"{error:.1e}",
        ]
        print(f"{mode:<8}" + "".join(f"{cell:>14}" for cell in cells))
        rows.append({
            "potential": digest_of(potential), "atoms": len(atoms), "mode": mode, "dtype": options.dtype,
            "ms": seconds * 1e3, "memory_bytes": report.memory_bytes, "engine": report.engine,
            "force_error": error, "capture_s": report.capture_s, "plan": report.plan,
        })  # fmt: skip
    print()
    print(step.report())
    return rows


def median_seconds(run: Callable[[], object]) -> float:
    """Median wall-clock time of a call, over about SECONDS_TO_MEASURE."""
    times: list[float] = []
    for _ in range(3):
        run()
    while (sum(times) < SECONDS_TO_MEASURE and len(times) < 1000) or len(times) < 3:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]
