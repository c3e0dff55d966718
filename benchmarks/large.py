"""Water boxes that nearly fill a GPU, evaluated at once and in slabs: time, memory of an atom, and differences.

    python -m benchmarks.large [--cases whole slabs copies8 row12 thin copies8thin] [--molecules 333000] [--mode graph]

organic-1 in float32. whole: a cube of 999,000 atoms with tensors of all atoms; slabs: the same in slabs of atoms, thin:
with four slabs as thick as the cutoff instead of two. copies8: the cube repeated twice along each vector, 7,992,000
atoms, within the memory that the plan leaves on a card of 80 GB (--most bytes); copies8thin; row12: repeated 12 times
along one vector. A repeated structure has the forces of the cube, which are therefore compared with those of `whole`.

ms: median of evaluations with positions and results on the device, neighbour search included. kB_per_atom: of the
step's memory; peak_kB: of the most that torch allocated, capture and audit included. difference: of forces, relative to
those of `whole`. force_error: of the audit, relative to float64.
"""

from __future__ import annotations

import argparse
import gc
import time
from typing import Any

import numpy as np
import torch

import torchmdx
from benchmarks import record, systems
from torchmdx import CapturedStep, Potential, System
from torchmdx.engines.plan import memory

# Of each case: how often the cube is repeated along each vector, and slabs that are together as thick as the cutoff.
CASES: dict[str, tuple[tuple[int, int, int], tuple[int, ...] | None]] = {
    "whole": ((1, 1, 1), None),
    "slabs": ((1, 1, 1), memory.REACHES),
    "thin": ((1, 1, 1), (4,)),
    "copies8": ((2, 2, 2), memory.REACHES),
    "copies8thin": ((2, 2, 2), (4,)),
    "row12": ((12, 1, 1), memory.REACHES),
}
MOST = 70_500_000_000  # bytes that the plan leaves for a step on an H100
EVALUATIONS = 5
SLAB_ATOMS = memory.SLAB_ATOMS


def repeated(molecules: int, counts: tuple[int, int, int]) -> System:
    """A cube of water, repeated along its cell vectors."""
    numbers, positions, cell = systems.water(molecules)
    shifts = np.stack(np.meshgrid(*map(np.arange, counts), indexing="ij"), -1).reshape(-1, 1, 3) @ cell
    places = (positions[None] + shifts).reshape(-1, 3)
    return System.create(places, np.tile(numbers, len(shifts)), cell * np.array(counts)[:, None], True)


def plan_as(case: str) -> None:
    """Makes the plan take the kernels of a case."""
    reaches = CASES[case][1]
    memory.REACHES = reaches or (2, 3, 4)  # type: ignore[assignment]
    memory.SLAB_ATOMS = SLAB_ATOMS if reaches else 10**12


def milliseconds(step: CapturedStep, placed: torch.Tensor) -> float:
    """Of one evaluation, the median."""
    times = []
    for _ in range(EVALUATIONS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step(placed, copy=False)
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return float(np.median(times))


def measure(
    potential: Potential, case: str, options: argparse.Namespace, forces: torch.Tensor | None
) -> tuple[dict[str, Any], torch.Tensor]:
    """The row of a case, and its forces."""
    counts = CASES[case][0]
    system = repeated(options.molecules, counts)
    plan_as(case)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    step = CapturedStep(potential, system, mode=options.mode, audit_every=2, max_memory=options.most)
    placed = step.batch.positions.clone()
    step(placed)
    torch.cuda.synchronize()
    first, most = time.perf_counter() - start, torch.cuda.max_memory_allocated()
    found = torch.as_tensor(step(placed).forces)  # also an audit
    report, atoms = step.report(), system.num_atoms
    row: dict[str, Any] = dict(case=case, atoms=atoms, cell=[round(x, 1) for x in system.cell.diagonal().tolist()])
    row |= dict(kB_per_atom=round(report.memory_bytes / atoms / 1e3, 2), peak_kB=round(most / atoms / 1e3, 2))
    row |= dict(first_step_s=round(first, 1), force_error=report.error, mode=report.mode)
    row["ms"] = round(milliseconds(step, placed), 1)
    row["us_per_atom"] = round(1e3 * row["ms"] / atoms, 4)
    if forces is not None:
        wanted = forces.repeat(int(np.prod(counts)), 1)
        row["difference"] = float((found - wanted).norm() / wanted.norm())
    del step
    gc.collect()
    return row, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cases", nargs="*", choices=tuple(CASES), default=["whole", "slabs", "copies8", "row12", "thin"]
    )
    parser.add_argument("--molecules", type=int, default=333_000)
    parser.add_argument("--mode", choices=("graph", "eager"), default="eager")
    parser.add_argument("--most", type=int, default=MOST)
    options = parser.parse_args()
    potential = torchmdx.load("organic-1", dtype=torch.float32, device="cuda")
    assert isinstance(potential, Potential)
    rows, forces = [], None
    for case in options.cases:
        row, found = measure(potential, case, options, forces)
        forces = found if case == "whole" else forces
        rows.append(row)
        print(row, flush=True)
        record.write("large", rows)


if __name__ == "__main__":
    main()
