"""Times multiple time steps of `torchmdx.Dynamics` against single steps: wall time per fs.

    python -m benchmarks.multiple_steps [FOLDER] [--rows organic-1/dhfr,...] [--fast aceff-2.0=FILE,...]

Langevin in float32. FOLDER (or $RELEASED_POTENTIALS) has AceFF and a potential of matgl; organic-1 comes with
torchmdx, and its fast model organic-1-fast. Fast models of the others are given, or have random weights, with the size
and the cutoff that `torchmdx distill` would choose here, or those that a row names. Random weights give times only.
The fast model has no Coulomb energy.

Atoms of 10⁸ amu hardly move, so that all steps have the edges of the first one, and the kicks are small whatever the
potentials are. single_ms and inner_N_ms: of a small step, wall clock over many steps, in stretches that alternate;
medians. A row also has the gain of each setting of SETTINGS (step x inner) over single steps of 1 fs, and of 2 fs with
heavy hydrogens: ratios of wall time per fs. They assume that costs do not depend on masses and step.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchmdx
from benchmarks import matgl_steps, record, systems
from torchmdx import Dynamics, Potential, System
from torchmdx.dynamics.integrators import Langevin
from torchmdx.training.distillation import network
from torchmdx.training.distillation.settings import DistillSettings

INNER = (2, 4)
# fs of an inner step, inner steps; hydrogens have 3 amu but in the first
SETTINGS = {"0.5x4": (0.5, 4), "1x2": (1.0, 2), "1x4": (1.0, 4), "2x2": (2.0, 2)}
STRETCHES, SECONDS = 5, 0.5
MASS = 1e8  # amu
CRYSTALS = {"Si 4096": ("Si", 8), "Cu 4000": ("Cu", 10)}
MATPES = "TensorNet-MatPES-PBE-v2025.1-PES"
FILES = {
    "aceff-1.1": "aceff-1.1.ckpt",
    "aceff-2.0": "aceff-2.0.ckpt",
    MATPES: MATPES,
}
MOLECULES = ("alanine_dipeptide", "chignolin", "dhfr", "water8000")
ROWS = (
    *(f"organic-1/{name}" for name in MOLECULES),
    "aceff-2.0/peptide_in_water",
    *(f"{MATPES}/{name}" for name in CRYSTALS),
    *(f"aceff-1.1/{name}/1x64" for name in ("water216", "water8000")),
    *(f"organic-1/{name}/{size}" for name in ("dhfr", "water8000") for size in ("1x32", "0x32", "1x64@3")),
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Row = dict[str, Any]


def timed(dynamics: Dynamics, num_steps: int) -> float:
    """Seconds that a number of steps take."""
    start = time.perf_counter()
    dynamics.run(num_steps)
    return time.perf_counter() - start


def structure(name: str) -> System:
    """A structure of `benchmarks.systems`, or a crystal with displacements."""
    if name in CRYSTALS:
        element, repeats = CRYSTALS[name]
        make, _ = matgl_steps.MATERIALS[element]
        return System.from_ase(matgl_steps.displaced(make() * (repeats, repeats, repeats)))
    numbers, positions, cell = systems.load(name)
    return System.create(positions, numbers, cell, None if cell is None else True)


def found_in(folder: Path, file: str) -> Path:
    """A file or a folder of this name, also in folders within. Raises FileNotFoundError."""
    found = sorted(folder.rglob(file))
    if not found:
        raise FileNotFoundError(f"{file} must be in {folder} or a folder within, got none")
    return found[0]


def fast_of(potential: Potential, system: System, size: str, file: str | None) -> tuple[Potential, str]:
    """The fast model, and what it is. size: layers x channels @ cutoff; empty: that of the file, or chosen."""
    if file is not None and not size:
        return torchmdx.load(file, dtype=torch.float32, device=DEVICE), Path(file).stem
    given: dict[str, Any] = {}
    if size:
        shape, _, cutoff = size.partition("@")
        layers, channels = (int(number) for number in shape.split("x"))
        given = dict(layers=layers, channels=channels, cutoff=float(cutoff) if cutoff else None)
    model, _ = network.choose(potential, [system], [system], DistillSettings(**given))
    said = f"{model.num_layers}x{model.num_channels}, {model.cutoff:g} Å"
    return network.untrained(model, potential), f"untrained {said}" + " (chosen)" * (not size)


def measure(potential: Potential, fast: Potential, system: System) -> Row:
    """Times of a small step, ms, and gains."""
    given: dict[str, Any] = dict(integrator=Langevin(1.0), timestep=0.5, masses=np.full(system.num_atoms, MASS))
    runs = {0: Dynamics(potential, system, **given)}
    runs |= {inner: Dynamics(potential, system, fast=fast, inner=inner, **given) for inner in INNER}
    counts = {}
    for inner, dynamics in runs.items():
        size = 20 * max(1, inner) if DEVICE == "cuda" else max(1, inner)
        dynamics.run(size)
        counts[inner] = size * max(1, round(SECONDS / max(timed(dynamics, size), 1e-6)))
    found: dict[int, list[float]] = {inner: [] for inner in runs}
    for _ in range(STRETCHES):
        for inner, dynamics in runs.items():
            found[inner].append(1e3 * timed(dynamics, counts[inner]) / counts[inner])
    medians = {inner: statistics.median(values) for inner, values in found.items()}
    row: Row = dict(atoms=system.num_atoms, single_ms=medians[0], why=runs[INNER[-1]].why)
    row |= {f"inner_{inner}_ms": medians[inner] for inner in INNER}
    for name, (timestep, inner) in SETTINGS.items():
        per_fs = medians[inner] / timestep
        row[name] = dict(gain_1_fs=medians[0] / per_fs, gain_2_fs=medians[0] / 2 / per_fs, ns_day=0.0864 / per_fs)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("RELEASED_POTENTIALS"))
    parser.add_argument("--rows", default=",".join(ROWS), help="POTENTIAL/SYSTEM or POTENTIAL/SYSTEM/1x64@3.5")
    parser.add_argument("--fast", default="", help="POTENTIAL=FILE,...: fast models")
    parser.add_argument("--record", default="multiple_steps" if DEVICE == "cuda" else "multiple_steps_cpu")
    options = parser.parse_args()
    torch.manual_seed(0)
    given = {"organic-1": "organic-1-fast"} | dict(pair.split("=") for pair in options.fast.split(",") if pair)
    rows = []
    for name in options.rows.split(","):
        model, system, *size = name.split("/")
        file = model if model not in FILES else found_in(Path(options.folder), FILES[model])
        potential = torchmdx.load(file, dtype=torch.float32, device=DEVICE).requires_grad_(False)
        moving = structure(system)
        fast, said = fast_of(potential, moving, "".join(size), given.get(model))
        row: Row = dict(potential=model, system=system, fast=said)
        try:
            row |= measure(potential, fast.requires_grad_(False), moving)
        except (RuntimeError, ValueError) as error:
            row |= dict(error=f"{type(error).__name__}: {error}"[:300])
        rows.append(row)
        print(row, flush=True)
        record.write(options.record, rows)
        del potential, fast
        gc.collect()


if __name__ == "__main__":
    main()
