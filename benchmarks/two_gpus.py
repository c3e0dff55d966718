"""One process with one GPU and with two: a large structure that is divided, and many replicas in `torchmdx.Dynamics`.

    python -m benchmarks.two_gpus [--atoms 24000 98304 999000] [--replicas 1024 8192]

organic-1 in float32. by step: water, ms from NumPy positions to NumPy forces, the median of stretches of --steps;
a `CapturedStep` on one GPU, a `DividedStep` on two. by dynamics: copies of alanine dipeptide, Langevin at 300 K and 1
fs, milliseconds a step of all of them. speedup: over one GPU. force_difference: relative, of two GPUs and one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import torchmdx
from benchmarks import record, systems
from benchmarks.ase_md import milliseconds
from torchmdx import CapturedStep, DividedStep, Dynamics, Potential, System

GPUS = ["cuda:0", "cuda:1"]


def evaluations(step: Any, places: list[np.ndarray]) -> Callable[[int], None]:
    """A function that evaluates a number of times, in turn at each of the places."""

    def work(count: int) -> None:
        for k in range(count):
            step(places[k % len(places)])

    return work


def divided(potential: Potential, atoms: int, steps: int) -> list[dict[str, Any]]:
    numbers, positions, cell = systems.water(atoms // 3)
    system = System.create(positions, numbers, cell, True)
    moved = [positions + 1e-3 * k for k in range(2)]
    rows: list[dict[str, Any]] = []
    forces = []
    for gpus in (1, 2):
        step: Any = (
            CapturedStep(potential, system, mode="graph")
            if gpus == 1
            else DividedStep(potential, system, devices=GPUS, mode="graph")
        )
        for place in (*moved, *moved):  # captures
            step(place)
        forces.append(np.array(step(positions).forces))
        ms = milliseconds(evaluations(step, moved), steps)
        rows.append(dict(by="step", atoms=atoms, gpus=gpus, ms=round(ms, 3)))
        if gpus == 2:
            report = step.report()
            rows[-1] |= dict(grid=list(report.grid), owned=list(report.owned), ghosts=list(report.ghosts))
        del step
        torch.cuda.empty_cache()
    difference = np.linalg.norm(forces[1] - forces[0]) / np.linalg.norm(forces[0])
    rows[1] |= dict(speedup=round(rows[0]["ms"] / rows[1]["ms"], 3), force_difference=float(difference))
    return rows


def replicas(potential: Potential, count: int, steps: int) -> list[dict[str, Any]]:
    numbers, positions, _ = systems.load("alanine_dipeptide")
    system = System.create(positions, numbers)
    rows: list[dict[str, Any]] = []
    for gpus in (1, 2):
        dynamics = Dynamics(
            potential,
            [system] * count,
            temperature=300.0,
            timestep=1.0,
            seed=1,
            devices=gpus,
        )
        ms = milliseconds(dynamics.run, steps)
        rows.append(dict(by="dynamics", atoms=22 * count, replicas=count, gpus=gpus, ms=round(ms, 4)))
        dynamics.close()
        del dynamics
        torch.cuda.empty_cache()
    rows[1]["speedup"] = round(rows[0]["ms"] / rows[1]["ms"], 3)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--atoms", type=int, nargs="*", default=[24_000, 98_304, 999_000])
    parser.add_argument("--replicas", type=int, nargs="*", default=[1024, 8192])
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    potential = torchmdx.load("organic-1", dtype=torch.float32, device="cuda")
    assert isinstance(potential, Potential)
    rows: list[dict[str, Any]] = []
    for work, sizes, steps in (
        (divided, options.atoms, options.steps),
        (replicas, options.replicas, 10 * options.steps),
    ):
        for size in sizes:
            rows += work(potential, size, steps)
            for row in rows[-2:]:
                print(row, flush=True)
            record.write("two_gpus", rows)


if __name__ == "__main__":
    main()
