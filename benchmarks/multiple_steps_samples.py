"""Independent samples per processor hour with multiple time steps and with single ones, on one thread of a CPU.

    OMP_NUM_THREADS=1 python -m benchmarks.multiple_steps_samples run --folder F --seed 1 [--seconds 900]
    OMP_NUM_THREADS=1 python -m benchmarks.multiple_steps_samples report --folder F

Alanine dipeptide with organic-1 and organic-1-fast in float32, 300 K, friction of 1/ps. `run` equilibrates a batch of
replicas, starts every setting from the same positions, and advances the settings in turn, 1 ps each, so that a busy
machine slows all of them alike. Several runs, of other seeds, may go side by side. `report` joins their replicas.

ns_day, seconds_ps: of a batch, by processor time, with snapshots every 0.1 ps. *_time_ps: integrated autocorrelation
times (`benchmarks.observables`); "torsion" is the slowest, in the mean of all settings, of the cosines and sines of φ
and ψ. *_samples_hour: of a batch, ps in a processor hour over twice that times the replicas. Their errors are by
the jackknife over replicas, those of seconds_ps from the scatter of picoseconds. gain_*: over single steps of 1 and 2
fs. positive_phi: largest share of frames of a replica with φ between 0° and 120°, whose basin is hardly ever reached.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchmdx
from benchmarks import multiple_steps_runs as runs
from benchmarks.multiple_steps_runs import PHI, PSI, Floats, Setting, Subject
from benchmarks.observables import correlation_time, mean_and_error, torsion
from benchmarks.record import write
from benchmarks.systems import load
from torchmdx.dynamics.integrators import Langevin

SINGLE_1, SINGLE_2 = Setting("nvt", None, 1.0, 1), Setting("nvt", 3.0, 2.0, 1)
SETTINGS = (SINGLE_1, SINGLE_2, Setting("nvt", None, 1.0, 2), Setting("nvt", 3.0, 2.0, 2))
SPACING, ROUND = 0.1, 10  # ps between frames; frames
EQUILIBRATION, WARM_UP = 10.0, 20  # ps; frames of each setting before the first one
SERIES = ("cos φ", "sin φ", "cos ψ", "sin ψ", "energy")


def frames(dynamics: torchmdx.Dynamics, setting: Setting, count: int, replicas: int) -> Floats:
    """The values of SERIES [F,R,5] of the next frames."""
    every, found = round(1000 * SPACING / setting.timestep), []
    for snapshot in dynamics.snapshots(count * every, every=every):
        positions = snapshot.positions.reshape(replicas, -1, 3)
        phi, psi = (np.radians(torsion(positions, atoms)) for atoms in (PHI, PSI))
        found.append(np.stack([np.cos(phi), np.sin(phi), np.cos(psi), np.sin(psi), snapshot.energy], -1))
    return np.array(found)


def run(folder: Path, seed: int, replicas: int, seconds: float) -> None:
    """Advances all settings until the wall time is over, and keeps FOLDER/SEED.npz up to date."""
    until = time.perf_counter() + seconds
    numbers, positions, _ = load("alanine_dipeptide")
    potential, fast = (
        torchmdx.load(name, dtype=torch.float32, device="cpu") for name in ("organic-1", "organic-1-fast")
    )
    subject = Subject("", numbers, np.tile(positions, (replicas, 1, 1)), None, potential, fast, seed=seed)
    subject.frames, _ = runs.equilibrated(subject, [(runs.TEMPERATURE, EQUILIBRATION)])
    moving = {one: subject.dynamics(one, Langevin(runs.FRICTION)) for one in SETTINGS}
    for setting, dynamics in moving.items():
        frames(dynamics, setting, WARM_UP, replicas)
    values: dict[str, list[Floats]] = {one.name: [] for one in moving}
    spent: dict[str, list[float]] = {one.name: [] for one in moving}
    while time.perf_counter() < until:
        for setting, dynamics in moving.items():
            start = time.process_time()
            values[setting.name].append(frames(dynamics, setting, ROUND, replicas))
            spent[setting.name].append(time.process_time() - start)
        joined = {name: np.concatenate(each) for name, each in values.items()}
        np.savez(
            folder / f"{seed}.npz", **joined, **{f"seconds {name}": np.array(each) for name, each in spent.items()}
        )


def jackknife(estimate: Callable[[Floats], float], series: Floats) -> tuple[float, float]:
    """An estimate from values [K,R], and its standard error over replicas."""
    count = series.shape[1]
    left_out = np.array([estimate(np.delete(series, each, 1)) for each in range(count)])
    return estimate(series), math.sqrt((count - 1) * left_out.var())


def row_of(setting: Setting, values: Floats, seconds: Floats, slowest: int) -> dict[str, Any]:
    """values: [F,R,5]; seconds: [K], of a batch, for each round."""
    cost, of_cost = mean_and_error(seconds / (ROUND * SPACING))
    row = dict(
        system="alanine_dipeptide", hydrogen_mass=setting.hydrogen_mass or "normal", step_fs=setting.timestep,
        inner=setting.inner, replicas=values.shape[1], picoseconds=len(values) * SPACING, seconds_ps=cost,
        seconds_ps_error=of_cost, ns_day=86.4 / cost, positive_phi=float(positive(values).mean(0).max()),
    )  # fmt: skip
    for name, place in (("torsion", slowest), ("energy", SERIES.index("energy"))):
        length, error = jackknife(lambda one: correlation_time(one, SPACING), values[..., place])
        samples = 3600 / cost / (2 * length)
        relative = math.hypot(error / length, of_cost / cost)
        row |= {f"{name}_time_ps": length, f"{name}_time_ps_error": error, f"{name}": SERIES[place]}
        row |= {f"{name}_samples_hour": samples, f"{name}_samples_hour_error": samples * relative}
    return row


def positive(values: Floats) -> Any:
    """Where φ is between 0° and 120°, [F,R]."""
    return (values[..., 1] > 0) & (values[..., 0] > -0.5)


def report(folder: Path) -> list[dict[str, Any]]:
    """A row of each setting, of all runs in the folder, and what it gains over single steps."""
    held = [dict(np.load(path)) for path in sorted(folder.glob("*.npz"))]
    count = min(len(each[SINGLE_1.name]) for each in held)
    values = {one: np.concatenate([each[one.name][:count] for each in held], 1) for one in SETTINGS}
    times = [[correlation_time(of[..., place], SPACING) for place in range(4)] for of in values.values()]
    slowest = int(np.mean(times, 0).argmax())
    rows = []
    for one in SETTINGS:
        seconds = np.concatenate([each[f"seconds {one.name}"] for each in held])
        rows.append(row_of(one, values[one], seconds, slowest))
    for row in rows:
        row["batch"] = row["replicas"] // len(held)
        for name, single in (("1_fs", rows[0]), ("2_fs", rows[1])):
            for of in ("torsion", "energy"):
                key = f"{of}_samples_hour"
                gain = row[key] / single[key]
                errors = [each[f"{key}_error"] / each[key] for each in (row, single) if row is not single]
                row |= {f"{of}_gain_{name}": gain, f"{of}_gain_{name}_error": gain * math.hypot(*errors, 0.0)}
            row[f"ns_gain_{name}"] = row["ns_day"] / single["ns_day"]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("run", "report"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replicas", type=int, default=8, help="of a batch")
    parser.add_argument("--seconds", type=float, default=900.0, help="wall time of a run, with the equilibration")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.stage == "run":
        options.folder.mkdir(parents=True, exist_ok=True)
        run(options.folder, options.seed, options.replicas, options.seconds)
    else:
        rows = report(options.folder)
        print(*rows, write("multiple_steps_samples", rows), sep="\n")


if __name__ == "__main__":
    main()
