"""Averages and drift of multiple time steps against single steps, with errors from independent replicas.

    python -m benchmarks.multiple_steps_physics start --folder F [--names alanine_dipeptide,water216]
    python -m benchmarks.multiple_steps_physics settle --folder F --name water216 --kind npt [--picoseconds 20]
    python -m benchmarks.multiple_steps_physics run --folder F --name water216 --fast FILE [--seconds 300]
    python -m benchmarks.multiple_steps_physics report --folder F

`start` brings replicas to equilibrium at 300 K, and those of water at 1 bar too; `settle` continues with that. `run`
takes the settings of a structure, with a wall time for all of them, which several processes share; every setting starts
from the same positions, and its result is a file of the folder, so that what is there is not run again. `report`
compares them, and writes results/multiple_steps_physics.json. A setting agrees if each average (potential energy;
configurational temperature <|∇U|²> / <∇²U> of all atoms and of hydrogens; variance of the lengths of bonds) differs
from that of single steps of 2 fs with heavy hydrogens by at most three standard errors of the difference, or by 1 %
(energies: of 3/2 k T per atom), and no distribution (bonds, φ and ψ, pairs of oxygens) is farther from it than 99 % of
random divisions of all replicas and 0.01 in total variation. The same is said of single steps of the same inner step
and masses, with the diffusion and, at constant pressure, the density in addition. The potential (--potential) is in
float32, the integrator that of Langevin with 1/ps.
"""

from __future__ import annotations

import argparse
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
from benchmarks.multiple_steps_report import REFERENCE, distillations, rows_of
from benchmarks.multiple_steps_runs import Setting, Subject
from benchmarks.record import update
from benchmarks.systems import STRUCTURES, load
from torchmdx.step.results import NonFiniteError, StepError

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEAVY = 3.0  # amu
REPLICAS = {"alanine_dipeptide": 128, "water216": 8}
# Temperatures K and times ps of the start; water is at equilibrium with a force field before, and then at 1 bar.
STAGES = {"alanine_dipeptide": [(600.0, 3.0), (300.0, 8.0)], "water216": [(330.0, 4.0), (300.0, 6.0)]}
PRESSED = 10.0  # ps
# Mass of hydrogens and inner step, fs: inner steps, 1 for single ones.
Counts = dict[tuple[float | None, float], tuple[int, ...]]
NVT: Counts = dict.fromkeys(((HEAVY, 2.0), (None, 1.0), (None, 0.5), (HEAVY, 1.0)), (1, 2, 3, 4, 6))
NVE: Counts = {
    (None, 0.5): (1, 2, 4, 5, 6, 7, 8, 9, 10),
    (None, 1.0): (1, 2, 3, 4, 5, 6),
    (HEAVY, 1.0): (1, 2, 3, 4, 5, 6, 7, 8),
    (HEAVY, 2.0): (1, 2, 3, 4),
}
# Of water, whose steps are slower.
LIQUID_NVT: Counts = {
    (HEAVY, 2.0): (1, 2, 3),
    (None, 1.0): (1, 2, 3, 4, 6),
    (HEAVY, 1.0): (1, 2, 3, 4, 6),
    (None, 0.5): (1, 4, 6),
}
LIQUID_NPT: Counts = {(HEAVY, 2.0): (1, 2, 3), (None, 1.0): (1, 2, 3, 4), (None, 0.5): (4,), (HEAVY, 1.0): (4, 6)}
LIQUID_NVE: Counts = {(None, 1.0): (1, 2, 3, 4), (None, 0.5): (4,), (HEAVY, 2.0): (1, 2, 3), (HEAVY, 1.0): (4,)}


def share_of(setting: Setting) -> float:
    """Relative time of a setting: most for the reference, and little where nothing is stable."""
    if setting.kind == "nve":
        return 1.0
    if setting.outer > 4:
        return 1.5
    return 6.0 if setting == REFERENCE else 3.0


def settings_of(name: str) -> list[Setting]:
    """The settings of a structure, the most important ones first."""
    if name.startswith("water"):
        tables = {"nvt": LIQUID_NVT, "npt": LIQUID_NPT, "nve": LIQUID_NVE}
    else:
        tables = {"nvt": NVT, "nve": NVE}
    named = [(kind, pair, inners) for kind, table in tables.items() for pair, inners in table.items()]
    found = [Setting(kind, *pair, inner) for kind, pair, inners in named for inner in inners]
    first = [one for one in found if one.outer <= 4 and one.kind != "nve"]
    return sorted(first, key=lambda one: one != REFERENCE) + [one for one in found if one not in first]


def start(options: argparse.Namespace) -> None:
    """Writes the starting positions of each structure."""
    for name in options.names.split(","):
        numbers, positions, cell = _structure(name, options.structures)
        replicas = options.replicas or REPLICAS.get(name, 8)
        potential = torchmdx.load(options.potential, dtype=torch.float32, device=DEVICE)
        subject = Subject(name, numbers, np.tile(positions, (replicas, 1, 1)), cell, potential, None)
        began = time.perf_counter()
        planned = STAGES.get(name, STAGES["water216"])
        stages = [(temperature, length * options.shorter) for temperature, length in planned]
        frames, _ = runs.equilibrated(subject, stages)
        given = {} if cell is None else {"cell": cell}
        np.savez(_start_of(options.folder, name, "nvt"), numbers=numbers, frames=frames, **given)
        if cell is not None:
            subject = Subject(name, numbers, frames, cell, potential, None)
            frames, cells = runs.equilibrated(subject, [(runs.TEMPERATURE, PRESSED * options.shorter)], pressed=True)
            np.savez(_start_of(options.folder, name, "npt"), numbers=numbers, frames=frames, cell=cells)
        print(f"{name}: {replicas} replicas, {time.perf_counter() - began:.0f} s", flush=True)


def settle(options: argparse.Namespace) -> None:
    """Goes on from the starting positions for some time, and writes those at its end instead."""
    subject = _subject(options.folder, options.name, options.potential, None, options.kind)
    stages = [(runs.TEMPERATURE, options.picoseconds)]
    frames, cells = runs.equilibrated(subject, stages, pressed=options.kind == "npt")
    given = {} if subject.cell is None else {"cell": cells if options.kind == "npt" else subject.cell}
    given |= dict(numbers=subject.numbers, frames=frames, settled_ps=subject.settled_ps + options.picoseconds)
    np.savez(_start_of(options.folder, options.name, options.kind), **given)
    print(f"{options.name}, {options.kind}: {options.picoseconds:g} ps more", flush=True)


def _start_of(folder: Path, name: str, kind: str) -> Path:
    """The file of starting positions for this kind of run."""
    return folder / (f"{name}.npt.start.npz" if kind == "npt" else f"{name}.start.npz")


def _structure(name: str, folder: Path | None) -> tuple[Any, Any, Any]:
    """Numbers, positions and cell: of NAME.xyz in the folder, of a liquid for water216, or of `systems`."""
    import ase.io

    if folder is not None and (folder / f"{name}.xyz").exists():
        atoms = ase.io.read(folder / f"{name}.xyz")
    elif name == "water216":
        atoms = ase.io.read(STRUCTURES / "liquid_water.pdb", index=0)
    else:
        return load(name)
    return atoms.numbers, atoms.positions, np.array(atoms.cell) if atoms.pbc.any() else None


_POTENTIALS: dict[str, Any] = {}


def _subject(folder: Path, name: str, potential: str, fast: str | None, kind: str) -> Subject:
    """The replicas of a structure for this kind of run, with potentials that this process keeps."""
    for file in filter(None, (potential, fast)):
        if file not in _POTENTIALS:
            _POTENTIALS[file] = torchmdx.load(file, dtype=torch.float32, device=DEVICE)
    with np.load(_start_of(folder, name, kind)) as held:
        given = (held["numbers"], held["frames"], held.get("cell"))
        settled = float(held.get("settled_ps", 0.0))
    return Subject(name, *given, _POTENTIALS[potential], _POTENTIALS.get(fast or ""), settled)


def work(
    folder: Path,
    name: str,
    potential: str,
    fast: str | None,
    setting: Setting,
    end: float,
    share: float,
    shorter: float,
) -> str:
    """Runs a setting, for a share of the time that is left until `end` (`time.time`), and writes its result.

    Returns a line about it.
    """
    began, result = time.perf_counter(), dict[str, Any]()
    until = began + 0.9 * share * (end - time.time())
    try:
        subject = _subject(folder, name, potential, fast, setting.kind)
        result["settled_ps"] = subject.settled_ps
        if setting.kind == "nve":
            result |= runs.constant_energy(subject, setting, until)
        else:
            result |= runs.constant_temperature(subject, setting, until, shorter)
        said = f"{result['frames']} frames, {result['picoseconds']:.1f} ps"
    except (FloatingPointError, StepError, NonFiniteError) as error:  # what a setting does to a run
        said = result["failed"] = f"{type(error).__name__}: {error}"
    except Exception as error:
        traceback.print_exc()
        return f"{name} {setting.name}: no result, {type(error).__name__}: {error}"
    result |= dict(seconds=time.perf_counter() - began, potential=Path(potential).stem)
    np.savez(folder / f"{name}.{setting.name}.npz", **result)
    return f"{name} {setting.name}: {said}, {result['seconds']:.1f} s"


def run(options: argparse.Namespace) -> None:
    """Runs all settings that have no result yet, in several processes."""
    end = time.time() + options.seconds
    settings = settings_of(options.name)
    settings = [one for one in settings if not (options.folder / f"{options.name}.{one.name}.npz").exists()]
    settings = [one for one in settings if re.search(options.match, one.name)]
    shares = [share_of(one) for one in settings]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, mp_context=context) as pool:
        submitted = []
        for place, setting in enumerate(settings):
            share = min(1.0, options.workers * shares[place] / sum(shares[place:]))
            given = (options.folder, options.name, options.potential, options.fast, setting, end, share)
            submitted.append(pool.submit(work, *given, options.shorter))
        for done in as_completed(submitted):
            print(done.result(), flush=True)


def report(options: argparse.Namespace) -> None:
    """Compares all results of the folder."""
    rows = distillations(options.folder)
    for name in options.names.split(","):
        rows += rows_of(name, options.folder, settings_of(name))
    for row in rows:
        print({key: value for key, value in row.items() if not isinstance(value, (dict, list))}, flush=True)
    keys = ("kind", "name", "system", "potential", "hydrogen_mass", "step_fs", "inner")
    print(update("multiple_steps_physics", rows, keys))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("start", "settle", "run", "report"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--names", default=",".join(REPLICAS))
    parser.add_argument("--structures", type=Path, help="folder with NAME.xyz to start from")
    parser.add_argument("--replicas", type=int)
    parser.add_argument("--shorter", type=float, default=1.0, help="factor of the times before the first frame")
    parser.add_argument("--name", default="alanine_dipeptide")
    parser.add_argument("--kind", default="nvt", choices=("nvt", "npt"), help="of the positions to settle")
    parser.add_argument("--picoseconds", type=float, default=20.0, help="to settle for")
    parser.add_argument("--potential", default="organic-1")
    parser.add_argument("--fast", help="checkpoint of the fast model")
    parser.add_argument("--seconds", type=float, default=60.0, help="wall time of all settings")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--match", default="", help="regular expression of names of settings, such as nvt-normal-0.5x4")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    {"start": start, "settle": settle, "run": run, "report": report}[options.stage](options)


if __name__ == "__main__":
    main()
