"""`torchmdx bench`: time, memory, engine and error of an evaluation on this machine, in each mode."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from torchmdx.commands.options import add_model_options, make_calculator, structure_of
from torchmdx.runtime.wording import counted

SECONDS_A_DAY = 86400.0
SECONDS_TO_MEASURE = 2.0


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="measure the time of energy and forces of a structure",
        description="Measures the time of one evaluation of energy and forces, from NumPy positions to NumPy forces, "
        "neighbour search included: in eager mode and, on a GPU, as a captured CUDA graph. The report of the last "
        "mode follows, with the engine and its error.",
    )
    parser.add_argument("file", metavar="FILE", help="structure file, in any format that ASE reads")
    add_model_options(parser, dtype="float32")
    parser.add_argument(
        "--index", default="-1", metavar="I", help="index of the structure in the file (default: -1, the last)"
    )
    parser.add_argument(
        "--skin", type=float, default=0.0, metavar="Å", help="distance added to the search radius, Å (default: 0)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    import torch

    from torchmdx.step.captured_step import CapturedStep
    from torchmdx.structures.system import System

    potential = make_calculator(options).potential
    record = structure_of(options)
    atoms = record.atoms
    system = System.from_ase(atoms, record.charge)
    device = potential.device
    threads = counted(torch.get_num_threads(), "thread")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {threads}"
    size = counted(len(atoms), "atom")
    print(f"{atoms.get_chemical_formula()}: {size}, {record.charge_text}; {options.dtype} on {name}")
    heads = ("ms a step", "µs an atom", "ns/day, 1 fs", "memory / MiB")
    print(f"{'mode':<8}" + "".join(f"{head:>14}" for head in heads))
    for mode in ("eager", "graph") if device.type == "cuda" else ("eager",):
        step = CapturedStep(potential, system, mode=mode, skin=options.skin, precision=options.dtype)
        step(atoms.positions)
        seconds = median_seconds(lambda step=step: step(atoms.positions, copy=False))  # type: ignore[misc]
        report = step.report()
        cells = [
            f"{seconds * 1e3:.4f}",
            f"{seconds * 1e6 / max(len(atoms), 1):.3f}",
            f"{SECONDS_A_DAY / seconds * 1e-6:.1f}",
            f"{report.memory_bytes / 2**20:.1f}" if device.type == "cuda" else "-",
        ]
        print(f"{mode:<8}" + "".join(f"{cell:>14}" for cell in cells))
    print()
    print(step.report())
    return 0


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
