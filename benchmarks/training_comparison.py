"""Errors after trainings of equal processor time: torchmdx, torchmd-net and MACE on the same frames.

    python -m benchmarks.training_comparison FOLDER [--budget 190] [--workers 16] [--seeds 0,1,2] [--gpu]

FOLDER: of benchmarks.training_sets. Every training is a process with one thread. A few epochs tell how long one takes;
the training proper then has as many as fit into the budget, in seconds of processor time from reading the files to the
end of the last epoch, without imports. Energies in meV/atom, forces in meV/Å, on the test frames. --gpu also trains
torchmdx's default network with default settings and several learning rates on a GPU, one after another. Peers:
torchmd-net 3.1.0 with warp-lang, MACE (mace-torch 0.3.16). Results: training_comparison.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import ase.io
import numpy as np

RATES = {"torchmdx": (1e-3, 2e-3, 4e-3), "MACE": (1e-2,), "torchmd-net": (1e-3, 4e-3)}
ONCE = {("torchmd-net", 4e-3)}  # with the first seed only
TRIED = 3  # epochs that tell how long one takes
SETTLE = 5.0  # s before the end at which work that still runs is ended


def errors(energies: np.ndarray, forces: list[np.ndarray], test: list[ase.Atoms]) -> dict[str, float]:
    """Mean absolute and root mean square errors; tail: of the hundredth of atoms with the largest forces."""
    counts = np.array([len(a) for a in test])
    energy = 1e3 * (energies - [a.info["REF_energy"] for a in test]) / counts
    labels = np.concatenate([a.arrays["REF_forces"] for a in test])
    force = 1e3 * (np.concatenate(forces) - labels)
    norms = np.linalg.norm(labels, axis=1)
    found = {"energy": energy, "force": force, "tail": force[norms > np.quantile(norms, 0.99)]}
    return {
        f"{name}_{kind}": round(float(value), 2)
        for name, one in found.items()
        for kind, value in (("mae", np.abs(one).mean()), ("rmse", np.sqrt((one**2).mean())))
    }


def job(program: str, data: Path, seed: int, rate: float, budget: float | None, device: str) -> dict[str, Any]:
    """Trains and returns the errors. budget None: the default settings of torchmdx."""
    import torch

    from benchmarks.training_peers import PROGRAMS

    torch.set_num_threads(1)
    train = PROGRAMS[program]
    row: dict[str, Any] = dict(set=data.name, program=program, rate=rate, seed=seed)
    test = ase.io.read(data / "test.xyz", ":")
    with tempfile.TemporaryDirectory() as folder:
        epochs = None
        if budget is not None:
            marks: list[float] = []
            start = time.process_time()
            train(data, Path(folder) / "trial", seed, rate, TRIED, device, marks)
            cost = float(np.mean(np.diff(marks)))
            epochs = max(TRIED, int((budget - (marks[0] - start - cost)) / cost))
        marks, start, wall = [], time.process_time(), time.perf_counter()
        predict = train(data, Path(folder) / "run", seed, rate, epochs, device, marks)
        row |= dict(epochs=len(marks), cpu_s=round(marks[-1] - start, 1))
        if budget is None:
            row |= dict(settings="default", device=torch.cuda.get_device_name() if device == "cuda" else device)
            row["wall_s"] = round(time.perf_counter() - wall, 1)
        return row | errors(*predict(test), test)


def listed(options: argparse.Namespace) -> tuple[list[list[str]], list[list[str]]]:
    """Arguments of the jobs of the processor and of the GPU, seed by seed."""
    seeds, sets = options.seeds.split(","), options.sets.split(",")
    rates = RATES | {"torchmdx": tuple(map(float, options.rates.split(",")))}
    of_cpu = [
        [program, data, seed, str(rate), str(options.budget), "cpu"]
        for seed in seeds
        for data in sets
        for program in options.programs.split(",")
        for rate in rates[program]
        if seed == seeds[0] or (program, rate) not in ONCE
    ]
    of_gpu = [
        ["torchmdx", data, seed, str(rate), "none", "cuda"]
        for seed in seeds
        for data in sets
        for rate in rates["torchmdx"]
        if options.gpu
    ]
    return of_cpu, of_gpu


def run_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Jobs in parallel until the deadline; what is not done by then has an error. Writes results as they come."""
    start = time.perf_counter()
    queues = dict(zip(("cpu", "cuda"), listed(options), strict=True))
    room = {"cpu": options.workers, "cuda": 1}
    running: list[tuple[subprocess.Popen[str], list[str]]] = []
    rows: list[dict[str, Any]] = []
    while running or any(queues.values()):
        for device, queue in queues.items():
            while queue and sum(words[-1] == device for _, words in running) < room[device]:
                words = queue.pop(0)
                command = [sys.executable, "-m", "benchmarks.training_comparison", str(options.folder), "--job", *words]
                log = (options.folder / ("-".join(words) + ".log")).open("w")
                environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
                process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
                running.append((process, words))
        time.sleep(0.2)
        late = time.perf_counter() - start > options.deadline - SETTLE
        for process, words in list(running):
            if process.poll() is None and not late:
                continue
            running.remove((process, words))
            named = dict(zip(("program", "set", "seed", "rate"), words, strict=False))
            if process.poll() is None:
                process.kill()
                rows.append(named | {"error": "late"})
                continue
            said = [line for line in process.communicate()[0].splitlines() if line.startswith("{")]
            rows.append(json.loads(said[-1]) if said else named | {"error": "failed"})
            print(f"{time.perf_counter() - start:.0f} s", rows[-1], flush=True)
            record(rows)
        if late:
            rows += [dict(zip(("program", "set", "seed", "rate"), w, strict=False)) | {"error": "late"}
                     for queue in queues.values() for w in queue]  # fmt: skip
            break
    return rows


MEASURED = ("cpu_s", "epochs", "force_mae", "force_rmse", "tail_mae", "tail_rmse", "energy_mae", "energy_rmse")


def means(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds, one row for each set, program and rate, with the number of seeds and deviations of forces."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if "error" not in row:
            groups.setdefault(tuple(row.get(name) for name in ("set", "program", "rate", "settings")), []).append(row)
    found = []
    for (name, program, rate, settings), some in groups.items():
        row = {"set": name, "program": program, "rate": rate, "seed": "mean", "seeds": len(some)}
        row |= {"settings": settings} if settings else {}
        row |= {key: round(float(np.mean([one[key] for one in some])), 1) for key in MEASURED}
        found.append(row | {"force_rmse_deviation": round(float(np.std([one["force_rmse"] for one in some])), 1)})
    return found


def record(rows: list[dict[str, Any]]) -> Path:
    from benchmarks.record import write

    key = ("set", "program", "rate", "seed")
    return write("training_comparison", sorted([*rows, *means(rows)], key=lambda row: [str(row[name]) for name in key]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--budget", type=float, default=190.0, help="s of processor time")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--sets", default="clusters,molecules")
    parser.add_argument("--programs", default=",".join(RATES))
    parser.add_argument("--rates", default=",".join(map(str, RATES["torchmdx"])), help="of torchmdx")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--deadline", type=float, default=1e9, help="s")
    parser.add_argument("--job", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        program, name, seed, rate, budget, device = options.job
        allowed = None if budget == "none" else float(budget)
        try:
            row = job(program, options.folder / name, int(seed), float(rate), allowed, device)
        except Exception:
            traceback.print_exc()
            raise
        print(json.dumps(row), flush=True)
        return
    rows = run_all(options)
    print(*means(rows), sep="\n")
    print(record(rows))


if __name__ == "__main__":
    main()
