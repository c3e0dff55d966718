"""Times float32, float64 and the exact model in float64 on the CPU, in turn in one process.

    OMP_NUM_THREADS=2 python -m benchmarks.precisions

ms: the least of all times, from NumPy positions to NumPy forces, on one thread of the processor's. force_error:
relative, against the exact model in float64, which runs on one thread. And seconds of the first and second Hessian.
Results go to cpu_precision.json.
"""

from __future__ import annotations

import copy
import time
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.build import molecule

from benchmarks import record, relax, step
from benchmarks.cpu import CRYSTALS, crystal
from torchmdx import Batch, Potential, System, load
from torchmdx.evaluation.properties.hessian import hessian
from torchmdx.step.captured_step import CapturedStep

EXACT = "float64, exact"
FEW_ATOMS = 200  # more are evaluated less often


def precisions() -> list[dict[str, Any]]:
    """Rows of cpu_precision.json."""
    aspirin, model = relax.conformers(3)[0], load()
    aspirin.rattle(0.03, seed=1)
    rows = hessian_rows(model, {"water": molecule("H2O"), "aspirin": aspirin})
    rows += precision_rows("aspirin", model, Batch.of(System.from_ase(aspirin)))
    rows += precision_rows("Cu108", *crystal("Cu108"))
    return rows + precision_rows("water216", model, step.batch_of("water216", 1))


def hessian_rows(model: Potential, structures: dict[str, Atoms]) -> list[dict[str, Any]]:
    """Seconds of the first Hessian, which tabulates filters, and of the second."""
    rows = []
    for name, atoms in structures.items():
        ends = [time.perf_counter()]
        for _ in range(2):
            hessian(model, System.from_ase(atoms))
            ends.append(time.perf_counter())
        first, second = (round(float(seconds), 3) for seconds in np.diff(ends))
        rows.append({"system": name, "by": "hessian", "atoms": len(atoms), "first_s": first, "s": second})
        print(rows[-1], flush=True)
    return rows


def precision_rows(name: str, model: Potential, batch: Batch) -> list[dict[str, Any]]:
    """Float32, float64 and the exact model in turn."""
    positions, stress, wide = batch.positions.double().numpy(), name in CRYSTALS, copy.deepcopy(model).double()
    steps = {
        EXACT: CapturedStep(wide, batch.to(dtype=torch.float64), stress=stress, engine="exact"),
        "float32": CapturedStep(model, batch.to(dtype=torch.float32), stress=stress),
        "float64": CapturedStep(wide, batch.to(dtype=torch.float64), stress=stress),
    }
    torch.set_num_threads(1)
    few = len(positions) < FEW_ATOMS
    times: dict[tuple[str, int], list[float]] = {}
    forces: dict[str, np.ndarray] = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        # On one thread the time of the processor, which other programs hardly change.
        now = time.process_time if threads == 1 else time.perf_counter
        for turn in range(15 if few else 4):
            for by, one in steps.items():
                if by == EXACT and (threads == 2 or turn >= (3 if few else 1)):
                    continue
                for _ in range(1 if by == EXACT else 5):
                    start = now()
                    found = one(positions).forces
                    times.setdefault((by, threads), []).append(now() - start)
                    forces[by] = found.copy()
    rows, size = [], np.linalg.norm(forces[EXACT])
    for (by, threads), values in times.items():
        error = float(np.linalg.norm(forces[by] - forces[EXACT]) / size)
        row = {"system": name, "by": by, "threads": threads, "atoms": len(positions)}
        rows.append({**row, "ms": round(min(values) * 1e3, 2), "force_error": error})
        print(rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    record.write("cpu_precision", precisions())
