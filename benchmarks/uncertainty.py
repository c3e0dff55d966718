"""What the uncertainty of a single potential costs in a step, and how good it is beside the spread of an ensemble.

    python -m benchmarks.uncertainty cost [--names alanine_dipeptide,chignolin,dhfr]
    python -m benchmarks.uncertainty quality [--frames examples/data/ethanol.xyz] [--epochs 100]

cost: organic-1 with and without `uncertainty=True`, float32, evaluated in turn: medians of `repeats` evaluations from
NumPy positions to NumPy forces, and the relative difference of the forces. quality: on the frames of a test set that
nothing was chosen by, per atom: RMS error, rank correlation of errors with uncertainties, miscalibration area, mean of
-log of the Gaussian density. `members` potentials are trained with as many epochs each as the single one (method
"ensemble"), and with as many in all (method "ensemble, equal cost"); their spreads are calibrated on the validation
frames, as uncertainties are.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

import torchmdx
from benchmarks import record, systems
from torchmdx import CapturedStep, Ensemble, Potential, System, load
from torchmdx.commands.cli import main as command
from torchmdx.datasets import Store
from torchmdx.datasets.splits import read_split
from torchmdx.models.ensemble import UNCALIBRATED
from torchmdx.models.uncertainty import Uncertainty, last_layer_size, with_uncertainty
from torchmdx.report.evaluation import evaluate_sets
from torchmdx.training.calibrate import factors_of

KEYS = ("kind", "device_kind", "name", "method")


def cost(names: list[str], repeats: int) -> list[dict[str, Any]]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    potential = load(device=device)
    size = last_layer_size(potential)
    known = Uncertainty(covariance=torch.eye(size, dtype=torch.float64), regulariser=0.01)
    rows = []
    for name in names:
        numbers, positions, cell = systems.load(name)
        system = System.create(positions, numbers, cell=cell, pbc=cell is not None)
        steps = {
            False: CapturedStep(potential, system),
            True: CapturedStep(with_uncertainty(potential, known), system, uncertainty=True),
        }
        times: dict[bool, list[float]] = {False: [], True: []}
        random, results = np.random.default_rng(0), {}
        for number in range(repeats + 5):
            moved = positions + 0.01 * random.normal(size=positions.shape)
            for wanted, step in steps.items():
                start = time.perf_counter()
                results[wanted] = step(moved)
                times[wanted] += [time.perf_counter() - start] * (number >= 5)
        without, with_it = (1e3 * float(np.median(times[wanted])) for wanted in (False, True))
        least = {wanted: 1e3 * min(taken) for wanted, taken in times.items()}
        forces = [results[wanted].forces for wanted in (False, True)]
        row = {
            "kind": "cost", "device_kind": device, "name": name, "method": "step", "atoms": len(numbers),
            "ms_without": without, "ms_with": with_it, "least_ms_without": least[False], "least_ms_with": least[True],
            "share": with_it / without - 1, "least_share": least[True] / least[False] - 1, "repeats": repeats,
            "force_difference": float(np.linalg.norm(forces[1] - forces[0]) / np.linalg.norm(forces[0])),
            "runs": steps[True].why,
        }  # fmt: skip
        print({key: value for key, value in row.items() if key not in KEYS})
        rows.append(row)
    return rows


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
                "kind": "quality", "device_kind": "cpu", "name": Path(frames).name, "method": method,
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
    parser.add_argument("--names", default="alanine_dipeptide,chignolin,dhfr")
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--frames", default="examples/data/ethanol.xyz")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--members", type=int, default=4)
    options = parser.parse_args()
    if options.what == "cost":
        rows = cost(options.names.split(","), options.repeats)
    else:
        rows = quality(options.frames, options.epochs, options.members)
    print(record.update("uncertainty", rows, KEYS))


if __name__ == "__main__":
    main()
