"""Times multiple time steps of `torchmdx.Dynamics` against single steps: wall time per fs.

    python -m benchmarks.multiple_steps [--names alanine_dipeptide,water8000] [--fast FILE]

Langevin at 300 K in float32, an untrained potential of organic-1's size, and a fast one of 1 layer, 32 channels and
3.5 Å unless a file is given. Atoms of 10⁸ amu hardly move, so that all steps have the edges of the first one, and the
kicks are small whatever the potentials are. A step is wall clock over many, in stretches that alternate; medians. Gains
are of four inner steps of 1 fs over single steps of 1 fs, and of 2 fs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import torch

import torchmdx
from benchmarks.record import write
from benchmarks.systems import load
from torchmdx import Dynamics, Potential, System, TensorNetConfig
from torchmdx.dynamics.integrators import Langevin

NAMES = ("alanine_dipeptide", "chignolin", "dhfr", "water8000")
INNER = (1, 2, 4)
STRETCHES, SECONDS = 5, 1.0
MASS = 1e8  # amu
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def timed(dynamics: Dynamics, num_steps: int) -> float:
    """Seconds that a number of steps take."""
    start = time.perf_counter()
    dynamics.run(num_steps)
    return time.perf_counter() - start


def measure(potential: Potential, fast: Potential, name: str) -> dict[str, Any]:
    numbers, positions, cell = load(name)
    system = System.create(positions, numbers, cell, None if cell is None else True)
    given: dict[str, Any] = dict(integrator=Langevin(1.0), timestep=0.5, masses=np.full(len(numbers), MASS))
    runs = {0: Dynamics(potential, system, **given)}
    runs |= {inner: Dynamics(potential, system, fast=fast, inner=inner, **given) for inner in INNER}
    counts = {}
    for inner, dynamics in runs.items():
        size = 20 * max(1, inner)
        dynamics.run(size)
        counts[inner] = size * max(1, round(SECONDS / max(timed(dynamics, size), 1e-6)))
    found: dict[int, list[float]] = {inner: [] for inner in runs}
    for _ in range(STRETCHES):
        for inner, dynamics in runs.items():
            found[inner].append(1e3 * timed(dynamics, counts[inner]) / counts[inner])
    single, *others = (statistics.median(values) for values in found.values())
    row: dict[str, Any] = dict(system=name, atoms=len(numbers), single_ms=single, why=runs[INNER[-1]].why)
    for inner, step in zip(INNER, others, strict=True):
        row |= {f"inner_{inner}_ms": step}
    row |= dict(gain_1_fs=single / row["inner_4_ms"], gain_2_fs=0.5 * single / row["inner_4_ms"])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", default=",".join(NAMES))
    parser.add_argument("--fast", metavar="FILE", help="of the elements of the systems")
    options = parser.parse_args()
    torch.manual_seed(0)
    potential = Potential(TensorNetConfig()).requires_grad_(False).to(DEVICE)
    small = TensorNetConfig(num_layers=1, num_channels=32, num_radial=16, cutoff=3.5)
    fast = Potential(small) if options.fast is None else torchmdx.load(options.fast, dtype=torch.float32)
    rows = []
    for name in options.names.split(","):
        rows.append(measure(potential, fast.requires_grad_(False).to(DEVICE), name))
        print(rows[-1], flush=True)
    print(write("multiple_steps", rows))


if __name__ == "__main__":
    main()
