"""Independent samples per processor hour with multiple time steps and with single ones, on one thread of a CPU.

    OMP_NUM_THREADS=1 python -m benchmarks.multiple_steps_samples run --folder F --seed 1 [--seconds 900]
    OMP_NUM_THREADS=1 python -m benchmarks.multiple_steps_samples report --folder F

Alanine dipeptide with organic-1 and organic-1-fast in float32, 300 K, friction of 1/ps. `run` equilibrates a batch,
starts every setting from the same positions, and advances them in turn, 1 ps each, so that a busy machine slows all of
them alike. Runs of several seeds may go side by side; `report` joins their replicas.

seconds_ps, ns_day: of a batch, by processor time, with snapshots every 0.1 ps. *_time_ps: integrated autocorrelation
times, with errors by the jackknife over replicas; "torsion" is the slowest, in the mean of all settings, of the cosines
and sines of φ and ψ. *_samples_hour: of a batch, ps in a processor hour over twice that, times the replicas.
*_gain_N_fs: over single steps of N fs. positive_phi: share of frames with φ of 0° to 120°, of one replica at most.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchmdx
from benchmarks import multiple_steps_runs as runs
from benchmarks.multiple_steps_runs import PHI, PSI, Setting, Subject
from benchmarks.observables import Floats, correlation_time, time_and_error, torsion
from benchmarks.record import write
from benchmarks.systems import load
from torchmdx.dynamics.integrators import Langevin

# Single steps first.
SETTINGS = [Setting("nvt", mass, step, inner) for inner in (1, 2) for mass, step in ((None, 1.0), (3.0, 2.0))]
REPLICAS, LONGEST = 8, 5.0  # of a batch; lags of a correlation time, in units of it
SPACING, ROUND = 0.1, 10  # ps between frames; frames
EQUILIBRATION, WARM_UP = 10.0, 20  # ps; frames of each setting before the first one
SERIES = ("cos φ", "sin φ", "cos ψ", "sin ψ", "energy")


def frames(dynamics: torchmdx.Dynamics, setting: Setting, count: int) -> Floats:
    """The values of SERIES [F,R,5] of the next frames."""
    every, found = round(1000 * SPACING / setting.timestep), []
    for snapshot in dynamics.snapshots(count * every, every=every):
        positions = snapshot.positions.reshape(REPLICAS, -1, 3)
        phi, psi = (np.radians(torsion(positions, atoms)) for atoms in (PHI, PSI))
        found.append(np.stack([np.cos(phi), np.sin(phi), np.cos(psi), np.sin(psi), snapshot.energy], -1))
    return np.array(found)


def run(folder: Path, seed: int, seconds: float) -> None:
    """Advances all settings until the wall time is over, and writes FOLDER/SEED.npz after each round."""
    until = time.perf_counter() + seconds
    numbers, positions, _ = load("alanine_dipeptide")
    models: Any = [torchmdx.load(name, dtype=torch.float32, device="cpu") for name in ("organic-1", "organic-1-fast")]
    subject = Subject("", numbers, np.tile(positions, (REPLICAS, 1, 1)), None, models[0], models[1], seed=seed)
    subject.frames, _ = runs.equilibrated(subject, [(runs.TEMPERATURE, EQUILIBRATION)])
    moving = {one: subject.dynamics(one, Langevin(runs.FRICTION)) for one in SETTINGS}
    for setting, dynamics in moving.items():
        frames(dynamics, setting, WARM_UP)
    held: dict[str, Any] = {one.name: np.zeros((0, REPLICAS, len(SERIES))) for one in SETTINGS}
    while time.perf_counter() < until:
        for setting, dynamics in moving.items():
            start = time.process_time()
            found = frames(dynamics, setting, ROUND)
            held.setdefault(f"seconds {setting.name}", []).append(time.process_time() - start)
            held[setting.name] = np.concatenate([held[setting.name], found])
        np.savez(folder / f"{seed}.npz", **held)


def rows_of(held: list[dict[str, Floats]]) -> list[dict[str, Any]]:
    """A row of each setting, of runs that have values [F,R,5] and the seconds of each round."""
    count = min(len(each[one.name]) for each in held for one in SETTINGS)
    values = [np.concatenate([each[one.name][:count] for each in held], 1) for one in SETTINGS]
    slowest = np.mean([[correlation_time(of[..., k], SPACING, LONGEST) for k in range(4)] for of in values], 0).argmax()
    rows: list[dict[str, Any]] = []
    for one, of in zip(SETTINGS, values, strict=True):
        cost = float(np.concatenate([each[f"seconds {one.name}"] for each in held]).mean()) / (ROUND * SPACING)
        batch, positive = of.shape[1] // len(held), (of[..., 1] > 0) & (of[..., 0] > -0.5)  # sin φ, cos φ
        row: dict[str, Any] = dict(hydrogen_mass=one.hydrogen_mass or "normal", step_fs=one.timestep, inner=one.inner)
        row |= dict(batch=batch, replicas=of.shape[1], picoseconds=round(count * SPACING, 1), seconds_ps=cost)
        row |= dict(ns_day=86.4 / cost, torsion=SERIES[slowest], positive_phi=float(positive.mean(0).max()))
        for name, k in (("torsion", slowest), ("energy", 4)):
            length, error = time_and_error(of[..., k], SPACING, LONGEST)
            samples = batch * 3600 / cost / (2 * length)
            row |= _pair(f"{name}_time_ps", length, error / length)
            row |= _pair(f"{name}_samples_hour", samples, error / length)
            for single in rows[:2]:
                relative = math.hypot(error / length, single[f"{name}_time_ps_error"] / single[f"{name}_time_ps"])
                gain = samples / single[f"{name}_samples_hour"]
                row |= _pair(f"{name}_gain_{single['step_fs']:g}_fs", gain, relative)
        rows.append(row)
    return rows


def _pair(name: str, value: float, relative: float) -> dict[str, float]:
    return {name: value, f"{name}_error": value * relative}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("run", "report"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=900.0, help="wall time of a run, with the equilibration")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.stage == "run":
        return run(options.folder, options.seed, options.seconds)
    rows = rows_of([dict(np.load(path)) for path in sorted(options.folder.glob("*.npz"))])
    print(*rows, write("multiple_steps_samples", rows), sep="\n")


if __name__ == "__main__":
    main()
