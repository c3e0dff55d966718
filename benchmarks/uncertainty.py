"""What the uncertainty of a single potential costs in a step, and how good it is, compared with an ensemble.

    python -m benchmarks.uncertainty cost [FOLDER] [--rows organic-1/alanine_dipeptide,...]
    python -m benchmarks.uncertainty quality [--frames examples/data/ethanol.xyz] [--epochs 100]

cost: steps with and without `uncertainty=True`, float32, evaluated in turn, in one process. ms: medians of `repeats`
evaluations from NumPy positions to NumPy forces. replay_ms: medians of replays of their graphs, on a GPU. share: what
the uncertainty adds, of replays where there are some. The covariance is that of a molecule's frames. error: the largest
relative one of an atom's uncertainty and of the structure's, against the exact model in float64. force_difference:
relative, 0 where the same kernels run. Method "dynamics": wall time of a step in runs of few atoms. FOLDER (or
$RELEASED_POTENTIALS) as for benchmarks.released.

quality: on the frames of a test set that nothing was chosen by, per atom: RMS error, rank correlation of errors with
uncertainties, miscalibration area, mean of -log of the Gaussian density. `members` potentials are trained with as many
epochs each as the single one (method "ensemble"), and with as many in all (method "ensemble, equal cost"); their
spreads are calibrated on the validation frames, as uncertainties are.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

import torchmdx
from benchmarks import record, released, released_systems, systems
from torchmdx import Batch, CapturedStep, Dynamics, Ensemble, Potential, System, evaluate
from torchmdx.commands.cli import main as command
from torchmdx.datasets import Store
from torchmdx.datasets.splits import read_split
from torchmdx.models.ensemble import UNCALIBRATED
from torchmdx.models.uncertainty import Uncertainty, last_layer_size, with_uncertainty
from torchmdx.report.evaluation import evaluate_sets
from torchmdx.step.buffer_storage import UNCERTAINTIES
from torchmdx.step.results import StepResult
from torchmdx.training.calibrate import factors_of

KEYS = ("kind", "device_kind", "potential", "name", "method")
ROWS = (
    "organic-1/alanine_dipeptide", "aceff-1.1/alanine_dipeptide", "aceff-2.0/alanine_dipeptide", "organic-1/chignolin",
    "aceff-2.0/chignolin", "organic-1/dhfr", "organic-1/water8000",
)  # fmt: skip
FEW = 64  # atoms whose dynamics are measured
MOST_EXACT = 5000  # atoms that are compared with the exact model in float64
REPLAYS, ROUNDS = 2000, 15  # replays of each graph, as far as there is time, and rounds
SECONDS = 2.0  # of replays
STEPS = 1000  # of dynamics in each round


def known(potential: Potential) -> Potential:
    """The potential with the uncertainty of frames of a small molecule, as regular as those of a training."""
    size = last_layer_size(potential)
    numbers, positions, _ = systems.load("alanine_dipeptide")
    random, exact = np.random.default_rng(1), copy.deepcopy(potential).double()
    moved = positions + 0.1 * random.normal(size=(2 * size, *positions.shape))
    frames = Batch.from_systems([System.create(x, numbers) for x in moved]).to(potential.device)
    exact = with_uncertainty(exact, Uncertainty(covariance=torch.eye(size, dtype=torch.float64), regulariser=1.0))
    rows = evaluate(exact, frames, forces=False).last_inputs
    assert rows is not None
    means = rows.cpu().view(len(moved), len(numbers), size).mean(1)
    covariance = means.T @ means / len(means)
    least = 1e-8 * float(torch.linalg.eigvalsh(covariance)[-1])
    return with_uncertainty(potential, Uncertainty(covariance=covariance, regulariser=least))


def replayed(steps: dict[bool, CapturedStep]) -> dict[bool, float] | None:
    """Milliseconds of a replay of each step's graph, in turn; None if one has none."""
    graphs = {wanted: step.policy.graphs.get("host") for wanted, step in steps.items()}
    if None in graphs.values():
        return None
    times: dict[bool, list[float]] = {False: [], True: []}
    count = REPLAYS // ROUNDS
    for number in range(ROUNDS + 1):
        for wanted, graph in graphs.items():
            assert graph is not None
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(count):
                graph.replay()
            end.record()
            end.synchronize()
            times[wanted] += [begin.elapsed_time(end) / count] * (number > 0)
        if number == 0:
            slowest = begin.elapsed_time(end) / count
            count = max(1, min(count, int(500 * SECONDS / ROUNDS / slowest)))
    return {wanted: float(np.median(taken)) for wanted, taken in times.items()}


def error_of(potential: Potential, system: System, found: StepResult) -> float | None:
    """Largest relative error of uncertainties, against the exact model in float64; None for many atoms."""
    if system.num_atoms > MOST_EXACT:
        return None
    exact = evaluate(copy.deepcopy(potential).double(), Batch.from_systems([system]).to(potential.device), forces=False)
    pairs = [(getattr(found, name), getattr(exact, name).cpu().numpy()) for name in UNCERTAINTIES]
    return max(float(np.abs(value / wanted - 1).max()) for value, wanted in pairs)


def given(kind: str, name: str, folder: Path | None) -> tuple[Potential, System] | None:
    """The potential, with an uncertainty, and the structure of a row; None without the potential."""
    path = released_systems.find(folder, kind)
    if path is None:
        return None
    potential = torchmdx.load(path, dtype=torch.float32, device=released.DEVICE)
    assert isinstance(potential, Potential)
    numbers, positions, cell = systems.load(name)
    return known(potential), System.create(positions, numbers, cell=cell, pbc=cell is not None)


def common(kind: str, name: str, method: str, system: System) -> dict[str, Any]:
    keys = dict(zip(KEYS, ("cost", released.DEVICE, kind, name, method), strict=True))
    return keys | {"atoms": system.num_atoms}


def cost(kind: str, name: str, potential: Potential, system: System, repeats: int) -> dict[str, Any]:
    """Of a step."""
    positions = system.positions.numpy()
    steps = {wanted: CapturedStep(potential, system, uncertainty=wanted) for wanted in (False, True)}
    times: dict[bool, list[float]] = {False: [], True: []}
    random, results = np.random.default_rng(0), {}
    repeats = repeats if len(positions) < MOST_EXACT else min(repeats, 20)
    for number in range(repeats + 5):
        moved = positions + 0.01 * random.normal(size=positions.shape)
        for wanted, step in steps.items():
            start = time.perf_counter()
            results[wanted] = step(moved)
            times[wanted] += [time.perf_counter() - start] * (number >= 5)
    without, with_it = (1e3 * float(np.median(times[wanted])) for wanted in (False, True))
    replays = replayed(steps) if released.GPU else None
    forces = [results[wanted].forces for wanted in (False, True)]
    chosen = replays or {False: without, True: with_it}
    report = steps[True].report()
    return common(kind, name, "step", system) | {
        "ms_without": without, "ms_with": with_it,
        "least_ms_without": 1e3 * min(times[False]), "least_ms_with": 1e3 * min(times[True]),
        "replay_ms_without": replays and replays[False], "replay_ms_with": replays and replays[True],
        "share": chosen[True] / chosen[False] - 1, "repeats": repeats,
        "nodes_without": steps[False].report().nodes, "nodes_with": report.nodes,
        "force_difference": float(np.linalg.norm(forces[1] - forces[0]) / np.linalg.norm(forces[0])),
        "error": error_of(potential, replace(system, positions=torch.from_numpy(moved)), results[True]),
        "runs": steps[True].why, "engine": report.engine, "engine_without": steps[False].report().engine,
    }  # fmt: skip


def cost_in_dynamics(kind: str, name: str, potential: Potential, system: System) -> dict[str, Any]:
    """Of a step of Langevin dynamics."""
    runs = {
        wanted: Dynamics(potential, system, timestep=0.5, temperature=300, seed=1, uncertainty=wanted)
        for wanted in (False, True)
    }
    times: dict[bool, list[float]] = {False: [], True: []}
    for number in range(ROUNDS + 1):
        for wanted, run in runs.items():
            start = time.perf_counter()
            run.run(STEPS)
            times[wanted] += [1e3 * (time.perf_counter() - start) / STEPS] * (number > 0)
    without, with_it = (float(np.median(times[wanted])) for wanted in (False, True))
    same = np.array_equal(runs[False].snapshot().positions, runs[True].snapshot().positions)
    return common(kind, name, "dynamics", system) | {
        "ms_without": without, "ms_with": with_it, "share": with_it / without - 1, "same_positions": bool(same),
    }  # fmt: skip


def trained(folder: Path, frames: str, epochs: int, seed: int) -> Potential:
    """A potential, with the same split for every seed."""
    settings = {
        "data": {"path": frames, "validation": 0.2, "test": 0.3, "seed": 0},
        "model": {"num_channels": 32, "num_layers": 1},
        "training": {"epochs": epochs, "batch_size": 16, "seed": seed, "device": "cpu"},
        "output": {"directory": str(folder), "report": False, "loggers": ["csv"]},
    }
    file = folder.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(settings))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert command(["train", str(file)]) == 0
    found = torchmdx.load(folder / "best.safetensors")
    assert isinstance(found, Potential)
    return found


def quality(frames: str, epochs: int, members: int) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = [trained(folder / f"whole-{k}", frames, epochs, k) for k in range(members)]
        short = [trained(folder / f"short-{k}", frames, epochs // members, k) for k in range(members)]
        store = Store.open(folder / "whole-0" / "data.store")
        parts = read_split(folder / "whole-0" / "split.json", store)

        def calibrated(potentials: list[Potential]) -> Ensemble:
            factors = factors_of(Ensemble(potentials), store, parts["validation"])
            return Ensemble(potentials, spread_factors=factors)

        methods: dict[str, tuple[Potential | Ensemble, int]] = {
            "last layer": (whole[0], 1),
            "ensemble, uncalibrated": (Ensemble(whole, spread_factors=UNCALIBRATED), members),
            "ensemble": (calibrated(whole), members),
            "ensemble, equal cost": (calibrated(short), members),
        }
        for method, (potential, count) in methods.items():
            sets = {"test": (store, parts["test"])}
            errors = evaluate_sets(potential, sets, device="cpu", dtype=torch.float32).errors["test"]
            found = errors.energy_spread if isinstance(potential, Ensemble) else errors.energy_uncertainty
            row = {
                "kind": "quality", "device_kind": "cpu", "potential": "trained", "name": Path(frames).name,
                "method": method,
                "evaluations": count, "epochs": epochs // members if "equal" in method else epochs,
                "train": len(parts["train"]), "validation": len(parts["validation"]), "test": len(parts["test"]),
                "rms_error_meV": 1e3 * found.rms_error, "rms_uncertainty_meV": 1e3 * found.rms_spread,
                "rank_correlation": found.rank_correlation, "miscalibration": found.miscalibration,
                "negative_log_likelihood": found.likelihood, "force_rmse_meV": 1e3 * errors.forces.rmse,
                "rank_correlation_of_atoms": errors.atoms_uncertainty.rank_correlation
                if not isinstance(potential, Ensemble)
                else errors.forces_spread.rank_correlation,
            }  # fmt: skip
            print({key: value for key, value in row.items() if key not in KEYS[:3]})
            rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cost", "quality"))
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("RELEASED_POTENTIALS"))
    parser.add_argument("--rows", default=",".join(ROWS), help="POTENTIAL/SYSTEM, comma-separated")
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--frames", default="examples/data/ethanol.xyz")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--members", type=int, default=4)
    options = parser.parse_args()
    if options.what == "cost":
        for asked in options.rows.split(","):
            kind, name = asked.split("/")
            if (made := given(kind, name, options.folder)) is None:
                continue
            rows = [cost(kind, name, *made, options.repeats)]
            if released.GPU and made[1].num_atoms < FEW:
                rows.append(cost_in_dynamics(kind, name, *made))
            for row in rows:
                print({key: value for key, value in row.items() if key not in KEYS[:2]}, flush=True)
            record.update("uncertainty", rows, KEYS)
    else:
        record.update("uncertainty", quality(options.frames, options.epochs, options.members), KEYS)
    print(record.RESULTS / "uncertainty.json")


if __name__ == "__main__":
    main()
