"""Times `torchmdx.Dynamics`: ns/day at 1 fs, compared with the evaluation alone and OpenMM with the native force.

    python -m benchmarks.dynamics [--names a,b] [--replicas 1024] [--steps-per-replay 20] [--no-openmm]

Langevin at 300 K and 1 fs in float32, an untrained potential. Atoms of 10⁸ amu hardly move, so that all steps have the
edges of the first one. A step is wall clock over many steps, and the evaluation alone a replay of the captured step
with positions on the device, in five stretches that alternate with those; all are medians. The last row has many copies
of the smallest system in one batch.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.record import write
from benchmarks.systems import load
from torchmdx import CapturedStep, Dynamics, Potential, System, TensorNetConfig, save
from torchmdx.dynamics.integrators import Langevin

NAMES = ("alanine_dipeptide", "chignolin", "dhfr")
TIMESTEP, STRETCHES = 1.0, 5  # fs
MASS = 1e8  # amu
SECONDS = 1.0  # of a stretch
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def timed(run: Any, count: int) -> float:
    """Seconds of one of `count`."""
    wait()
    start = time.perf_counter()
    run(count)
    wait()
    return (time.perf_counter() - start) / count


def evaluations(potential: Potential, systems: list[System]) -> Any:
    """A function that evaluates a number of times at the same positions, on the device where there is one."""
    step = CapturedStep(potential, systems, mode="graph" if DEVICE == "cuda" else "auto")
    positions = step.batch.positions
    for _ in range(3):
        step(positions)

    def run(count: int) -> None:
        if DEVICE == "cuda":
            graph = step.policy.graphs["device"]
            for _ in range(count):
                graph.replay()
        else:
            for _ in range(count):
                step(positions, copy=False)

    return run


def measure(potential: Potential, name: str, replicas: int, steps_per_replay: int) -> dict[str, Any]:
    numbers, positions, cell = load(name)
    system = System.create(positions, numbers, cell, None if cell is None else True)
    start = time.perf_counter()
    dynamics = Dynamics(
        potential, [system] * replicas, integrator=Langevin(1.0), timestep=TIMESTEP, steps_per_replay=steps_per_replay,
        masses=np.full(replicas * len(numbers), MASS),
    )  # fmt: skip
    dynamics.run(5 * steps_per_replay + 1)
    setup = time.perf_counter() - start
    evaluate = evaluations(potential, [system] * replicas)
    once = timed(evaluate, 5)
    count = max(steps_per_replay, int(SECONDS / once) // steps_per_replay * steps_per_replay)
    steps, alone = [], []
    for _ in range(STRETCHES):
        steps.append(timed(dynamics.run, count))
        alone.append(timed(evaluate, count))
    step, evaluation = statistics.median(steps), statistics.median(alone)
    return dict(
        system=name,
        atoms=len(numbers),
        replicas=replicas,
        steps_per_replay=steps_per_replay,
        setup_s=round(setup, 2),
        step_ms=round(step * 1e3, 4),
        evaluation_ms=round(evaluation * 1e3, 4),
        beyond_percent=round(100 * (step / evaluation - 1), 1),
        ns_day=round(86400e-6 * TIMESTEP * replicas / step, 1),
        molecule_steps_s=round(replicas / step),
        recoveries=dynamics.num_recoveries,
        temperature=round(float(dynamics.snapshot().temperature.mean()), 1),
        moved_angstrom=round(float(np.abs(dynamics.snapshot().positions - np.tile(positions, (replicas, 1))).max()), 3),
        why=dynamics.why,
    )


def measure_openmm(name: str, path: Path) -> dict[str, Any]:
    from benchmarks.openmm_steps import seconds_a_step, set_up, steps_for

    force, context, _ = set_up(name, "native", path)
    count = context.getSystem().getNumParticles()
    step, replay, _ = seconds_a_step(context, steps_for(count), force)
    return dict(
        openmm_step_ms=round(step * 1e3, 4),
        openmm_replay_ms=round(replay * 1e3, 4),
        openmm_ns_day=round(86400e-6 / step, 1),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", default=",".join(NAMES))
    parser.add_argument("--replicas", type=int, default=1024, help="copies in the last row; 0: none")
    parser.add_argument("--steps-per-replay", type=int, default=20)
    parser.add_argument("--no-openmm", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    potential = Potential(TensorNetConfig())
    names, rows = options.names.split(","), []
    with_openmm = DEVICE == "cuda" and not options.no_openmm and importlib.util.find_spec("openmm") is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save(potential, path)
        own = potential.to(DEVICE)
        for name, replicas in [*((name, 1) for name in names), (names[0], options.replicas)]:
            if not replicas:
                continue
            row = measure(own, name, replicas, options.steps_per_replay)
            if with_openmm and replicas == 1:
                row |= measure_openmm(name, path)
            rows.append(row)
            print(row, flush=True)
            write("dynamics", rows)


if __name__ == "__main__":
    main()
