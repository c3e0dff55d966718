"""Water boxes that nearly fill a GPU: ms a step, and memory per atom, with the released potential.

    python -m benchmarks.large [--names water333000,water1334000]

Each box has three atoms for each molecule of its name. ms: mean of three replays of the captured step with positions on
the device, neighbour search included. transient_GB: memory that capture and audit took beyond the step's, until the
first result. force_error: as `CapturedStep.error`, that of the audit.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

import torchmdx
from benchmarks.record import write
from benchmarks.systems import load
from torchmdx import CapturedStep, System

NAMES = "water333000,water1334000"
REPLAYS = 3


def measure(name: str) -> dict[str, Any]:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    numbers, positions, cell = load(name)
    potential = torchmdx.load(dtype=torch.float32, device="cuda")
    start = time.perf_counter()
    system = System.create(positions, numbers, cell, True)
    step = CapturedStep(potential, [system], mode="graph")
    placed = step.batch.positions
    step(placed)
    torch.cuda.synchronize()
    first, most = time.perf_counter() - start, torch.cuda.max_memory_allocated()
    step(placed)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph = step.policy.graphs["device"]
    begin.record()
    for _ in range(REPLAYS):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    report = step.report()
    return dict(
        system=name,
        atoms=len(numbers),
        engine=report.engine,
        ms=round(begin.elapsed_time(end) / REPLAYS, 2),
        memory_GB=round(report.memory_bytes / 1e9, 2),
        kB_per_atom=round(report.memory_bytes / len(numbers) / 1e3, 2),
        transient_GB=round((most - report.memory_bytes) / 1e9, 3),
        force_error=report.error,
        first_step_s=round(first, 1),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", default=NAMES)
    options = parser.parse_args()
    rows = []
    for name in options.names.split(","):
        rows.append(measure(name))
        print(rows[-1], flush=True)
        write("large", rows)


if __name__ == "__main__":
    main()
