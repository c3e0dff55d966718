"""Converts an extended XYZ file of a million frames, and measures time and memory.

    python -m benchmarks.convert_frames FRAMES PROCESSES

Frames are rattled methane molecules with random forces. cpu_s and memory_mb: of all processes, and of the largest one.
Results go to convert_frames.json.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import update
from torchmdx.datasets import convert

METHANE = np.array([[0, 0, 0], [0.63, 0.63, 0.63], [-0.63, -0.63, 0.63], [-0.63, 0.63, -0.63], [0.63, -0.63, -0.63]])
AT_ONCE = 10_000
HEAD = '5\nProperties=species:S:1:pos:R:3:forces:R:3 energy={:.6f} pbc="F F F"\n'


def write_frames(path: Path, count: int) -> None:
    """Writes methane molecules."""
    random = np.random.default_rng(0)
    with path.open("w") as file:
        for start in range(0, count, AT_ONCE):
            size = min(AT_ONCE, count - start)
            rows = np.concatenate([METHANE + random.normal(0, 0.05, (size, 5, 3)), random.normal(size=(size, 5, 3))], 2)
            for energy, atoms in zip(random.normal(-1100, 0.2, size), rows, strict=True):
                lines = (
                    f"{name} " + " ".join(f"{x:.6f}" for x in row) for name, row in zip("CHHHH", atoms, strict=True)
                )
                file.write(HEAD.format(energy) + "\n".join(lines) + "\n")


def used() -> tuple[float, float]:
    """CPU time, s, and memory, MB, of this process and its children."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in both), max(one.ru_maxrss for one in both) / 1024


def measured(frames: int, processes: int) -> dict[str, Any]:
    """The row of one conversion."""
    with tempfile.TemporaryDirectory() as folder:
        write_frames(Path(folder) / "frames.xyz", frames)
        before, begun = used()[0], time.perf_counter()
        convert([Path(folder) / "frames.xyz"], Path(folder) / "store", processes=processes)
        wall = time.perf_counter() - begun
    cpu, memory = used()
    return {
        "frames": frames,
        "atoms": 5,
        "processes": processes,
        "wall_s": round(wall),
        "cpu_s": round(cpu - before),
        "memory_mb": round(memory),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("frames", type=int)
    parser.add_argument("processes", type=int)
    options = parser.parse_args()
    print(update("convert_frames", [measured(options.frames, options.processes)], ("frames", "processes")))


if __name__ == "__main__":
    main()
