"""Memory of many evaluations on the CPU: long_run.py [STEPS]. Ends with status 1 if it grows.

A molecule, and a periodic box whose list is too small now and then, each evaluated STEPS times (100,000) at positions
that change, with stress, through the step that every interface uses. Reads the resident memory of the process after
each tenth. The first two tenths may still allocate.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
TENTHS = 10
MOST_GROWTH = 2**20  # bytes between the second tenth and the last


def resident() -> int:
    """Bytes of memory of this process, without what can be freed by collecting."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def memory_over(step: object, positions: np.ndarray, cell: np.ndarray, count: int, amplitude: float) -> list[int]:
    """Resident memory after each tenth of `count` evaluations."""
    random, found = np.random.default_rng(0), []
    for tenth in range(TENTHS):
        for k in range(count // TENTHS):
            # Every hundredth structure is far denser: the list does not fit at first.
            scale = 0.6 if k % 100 == 99 else 1.0
            moved = scale * positions + amplitude * random.normal(size=positions.shape)
            step(moved, scale * cell)  # type: ignore[operator]
        found.append(resident())
        print(f"long_run: {(tenth + 1) * count // TENTHS} evaluations, {found[-1] / 2**20:.2f} MiB", flush=True)
    return found


def main(arguments: list[str]) -> int:
    """Runs both; returns the exit status."""
    count = int(arguments[0]) if arguments else 100_000
    sys.path.insert(0, str(ROOT))
    from ase.build import bulk, molecule

    import torchmdx
    from torchmdx import CapturedStep, System

    potential, status = torchmdx.load(), 0
    crystal = bulk("NaCl", "rocksalt", a=5.6).repeat(2)
    crystal.numbers[:] = np.where(crystal.numbers == 11, 6, 8)
    for atoms, amplitude in ((molecule("CH3CH2OH"), 0.02), (crystal, 0.1)):
        step = CapturedStep(potential, System.from_ase(atoms), stress=True, energies=True)
        found = memory_over(step, atoms.positions, atoms.cell.array, count, amplitude)
        growth = found[-1] - found[1]
        print(f"long_run: {atoms.symbols}: {step.num_recoveries} longer lists, memory grew by {growth / 1024:.0f} KiB")
        status = status or int(growth > MOST_GROWTH)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
