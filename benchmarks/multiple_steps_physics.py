"""Averages and drift of multiple time steps against single steps, with errors from independent replicas.

    python -m benchmarks.multiple_steps_physics start --folder F [--names alanine_dipeptide,water216]
    python -m benchmarks.multiple_steps_physics run --folder F --name water216 --fast FILE [--seconds 300]
    python -m benchmarks.multiple_steps_physics report --folder F

`start` brings replicas to equilibrium at 300 K. `run` takes the settings of a structure, with a wall time for all of
them, which several processes share; every setting starts from the same positions, and its result is a file of the
folder, so that what is there is not run again. `report` compares them, and writes
results/multiple_steps_physics.json. A setting agrees if each average (potential energy; configurational temperature
<|∇U|²> / <∇²U> of all atoms and of hydrogens; variance of the lengths of bonds) differs from that of single steps of
2 fs with heavy hydrogens by at most three standard errors of the difference, or by 1 % (energies: of 3/2 k T per atom),
and no distribution (bonds, φ and ψ, pairs of oxygens) is farther from it than 99 % of random divisions of all replicas
and 0.01 in total variation. The potential (--potential) is in float32, the integrator that of Langevin with
1/ps.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchmdx
from benchmarks import multiple_steps_runs as runs
from benchmarks.multiple_steps_report import REFERENCE, rows_of
from benchmarks.multiple_steps_runs import Setting, Subject
from benchmarks.record import write
from benchmarks.systems import load
from torchmdx.step.results import NonFiniteError, StepError

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEAVY = 3.0  # amu
REPLICAS = {"alanine_dipeptide": 128, "water216": 8}
STAGES = {"alanine_dipeptide": [(600.0, 3.0), (300.0, 8.0)], "water216": [(420.0, 4.0), (300.0, 12.0)]}  # K, ps
INNER = (2, 3, 4, 6)
STEPS = ((None, 0.5), (None, 1.0), (HEAVY, 1.0), (HEAVY, 2.0))  # mass of hydrogens, inner step
PRESSURE = ((None, 1.0, 1), (None, 0.5, 4), (HEAVY, 2.0, 2))
# Inner steps of runs at constant energy.
LENGTHS = {
    (None, 0.5): (2, 4, 5, 6, 7, 8, 9, 10),
    (None, 1.0): (2, 3, 4, 5, 6),
    (HEAVY, 1.0): (2, 3, 4, 5, 6, 7, 8),
    (HEAVY, 2.0): (2, 3, 4),
}


def share_of(setting: Setting) -> float:
    """Relative time of a setting: most for the reference, and little where nothing is stable."""
    if setting.kind == "npt":
        return 6.0
    if setting.kind == "nve" or setting.outer > 6:
        return 1.0
    return 6.0 if setting == REFERENCE else 3.0


def settings_of(name: str) -> list[Setting]:
    """The settings of a structure, the longest runs first."""
    found = [REFERENCE] + ([Setting("npt", *given) for given in PRESSURE] if name.startswith("water") else [])
    others = [Setting("nvt", mass, step, inner) for inner in (1, *INNER) for mass, step in STEPS]
    found += [one for one in others if one != REFERENCE]
    return found + [Setting("nve", *pair, inner) for pair, counts in LENGTHS.items() for inner in (1, *counts)]


def start(options: argparse.Namespace) -> None:
    """Writes the starting positions of each structure."""
    for name in options.names.split(","):
        numbers, positions, cell = _structure(name, options.structures)
        replicas = options.replicas or REPLICAS[name]
        potential = torchmdx.load(options.potential, dtype=torch.float32, device=DEVICE)
        subject = Subject(name, numbers, np.tile(positions, (replicas, 1, 1)), cell, potential, None)
        began = time.perf_counter()
        stages = [(temperature, length * options.shorter) for temperature, length in STAGES[name]]
        frames = runs.equilibrated(subject, stages)
        given = {} if cell is None else {"cell": cell}
        np.savez(options.folder / f"{name}.start.npz", numbers=numbers, frames=frames, **given)
        print(f"{name}: {replicas} replicas, {time.perf_counter() - began:.0f} s", flush=True)


def _structure(name: str, folder: Path | None) -> tuple[Any, Any, Any]:
    """Numbers, positions and cell: of NAME.xyz in the folder, or of `benchmarks.systems`."""
    if folder is None or not (folder / f"{name}.xyz").exists():
        return load(name)
    import ase.io

    atoms = ase.io.read(folder / f"{name}.xyz")
    return atoms.numbers, atoms.positions, np.array(atoms.cell) if atoms.pbc.any() else None


_POTENTIALS: dict[str, Any] = {}


def _subject(folder: Path, name: str, potential: str, fast: str | None) -> Subject:
    """The replicas of a structure, with potentials that this process keeps."""
    for file in filter(None, (potential, fast)):
        if file not in _POTENTIALS:
            _POTENTIALS[file] = torchmdx.load(file, dtype=torch.float32, device=DEVICE)
    with np.load(folder / f"{name}.start.npz") as held:
        given = (held["numbers"], held["frames"], held.get("cell"))
    return Subject(name, *given, _POTENTIALS[potential], _POTENTIALS.get(fast or ""))


def work(
    folder: Path, name: str, potential: str, fast: str | None, setting: Setting, seconds: float, shorter: float
) -> str:
    """Runs a setting, and writes its result; returns a line about it."""
    began, result = time.perf_counter(), {}
    until = began + 0.9 * seconds
    try:
        subject = _subject(folder, name, potential, fast)
        if setting.kind == "nve":
            result = runs.constant_energy(subject, setting, until)
        else:
            result = runs.constant_temperature(subject, setting, until, shorter)
        said = f"{result['frames']} frames, {result['picoseconds']:.1f} ps"
    except Exception as error:
        said = result["failed"] = f"{type(error).__name__}: {error}"
        if not isinstance(error, (FloatingPointError, StepError, NonFiniteError)):
            traceback.print_exc()
    result |= dict(seconds=time.perf_counter() - began, potential=Path(potential).stem)
    np.savez(folder / f"{name}.{setting.name}.npz", **result)
    return f"{name} {setting.name}: {said}, {result['seconds']:.1f} s"


def run(options: argparse.Namespace) -> None:
    """Runs all settings that have no result yet, in several processes."""
    settings = settings_of(options.name)
    settings = [one for one in settings if not (options.folder / f"{options.name}.{one.name}.npz").exists()]
    settings = [one for one in settings if re.search(options.match, one.name)]
    if not settings:
        return
    share = options.seconds * options.workers / sum(share_of(one) for one in settings)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, mp_context=context) as pool:
        given = [
            (options.folder, options.name, options.potential, options.fast, one, share * share_of(one), options.shorter)
            for one in settings
        ]
        for done in as_completed([pool.submit(work, *each) for each in given]):
            print(done.result(), flush=True)


def report(options: argparse.Namespace) -> None:
    """Compares all results of the folder."""
    rows = []
    for path in sorted(options.folder.glob("*.distillation/distillation.json")):
        found = json.loads(path.read_text())["chosen"]
        if "result" in found:
            rows.append(dict(kind="distillation", name=path.parent.stem, **_plain(found["result"])))
    for name in REPLICAS:
        rows += rows_of(name, options.folder, settings_of(name))
    for row in rows:
        print({key: value for key, value in row.items() if not isinstance(value, (dict, list))}, flush=True)
    print(write("multiple_steps_physics", rows))


def _plain(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in ("page", "kind", "name")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("start", "run", "report"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--names", default=",".join(REPLICAS))
    parser.add_argument("--structures", type=Path, help="folder with NAME.xyz to start from")
    parser.add_argument("--replicas", type=int)
    parser.add_argument("--shorter", type=float, default=1.0, help="factor of the times before the first frame")
    parser.add_argument("--name", default="alanine_dipeptide")
    parser.add_argument("--potential", default="organic-1")
    parser.add_argument("--fast", help="checkpoint of the fast model")
    parser.add_argument("--seconds", type=float, default=60.0, help="wall time of all settings")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--match", default="", help="regular expression of names of settings, such as nvt-normal-0.5x4")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    {"start": start, "run": run, "report": report}[options.stage](options)


if __name__ == "__main__":
    main()
