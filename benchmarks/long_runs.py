"""Long runs of released potentials by `torchmdx.Dynamics`: drift, temperature, density, lattice constants, recoveries.

    python -m benchmarks.long_runs [FOLDER] [--rows water-npt,...] [--picoseconds 100] [--seconds 150]

FOLDER (or $RELEASED_POTENTIALS) has the files and folders of `released.POTENTIALS`. float32. Each run starts from a
relaxed structure, after 5 ps with Langevin(10/ps). Errors are standard errors from ten blocks of time. drift: slope of
the total energy, eV/atom/ps, at constant energy. recoveries: steps that were repeated with a longer list. A run ends
after --seconds, if it has not reached --picoseconds by then.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ase
import numpy as np
import torch
from ase.build import bulk
from numpy.typing import NDArray

import torchmdx
from benchmarks import drift, record, released
from torchmdx import Dynamics, Potential, System
from torchmdx.dynamics import CellRescaling, Langevin

Row = dict[str, Any]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BLOCKS, EVERY = 10, 50
SETTLING, TEMPERATURE = 5.0, 300.0  # ps, K
GRAMS = 1.66053907  # of amu/Å³ in g/cm³
MATPES = "TensorNet-MatPES-PBE-v2025.1-PES"


@dataclass(frozen=True)
class Run:
    """known: a measured density, g/cm³, or lattice constant, Å, at 300 K."""

    potential: str
    system: str
    ensemble: str  # nve, nvt, npt
    timestep: float  # fs
    compressibility: float = 4.6e-5  # 1/bar
    known: float | None = None


RUNS = {
    "peptide-nvt": Run("aceff-1.1", "peptide_in_water", "nvt", 1.0),
    "peptide-nve": Run("aceff-1.1", "peptide_in_water", "nve", 0.5),
    "water-npt": Run("aceff-2.0", "water216", "npt", 1.0, known=0.997),
    "copper-npt": Run(MATPES, "Cu 108", "npt", 2.0, 7e-7, known=3.615),
    "salt-npt": Run(MATPES, "NaCl 216", "npt", 2.0, 4e-6, known=5.640),
}


def structure(name: str) -> ase.Atoms:
    if name == "Cu 108":
        return bulk("Cu", cubic=True) * (3, 3, 3)
    if name == "NaCl 216":
        return bulk("NaCl", "rocksalt", a=5.64, cubic=True) * (3, 3, 3)
    return released.structure(name)


def mean(values: NDArray[np.float64]) -> tuple[float, float]:
    """With the standard error, from blocks of time."""
    size = len(values) // BLOCKS
    blocks = values[: size * BLOCKS].reshape(BLOCKS, size).mean(1)
    return float(blocks.mean()), float(blocks.std(ddof=1) / BLOCKS**0.5)


def rounded(name: str, values: NDArray[np.float64], digits: int) -> Row:
    found, error = mean(values)
    return {name: round(found, digits), f"{name}_error": round(error, digits)}


def measure(name: str, run: Run, path: str | Path, picoseconds: float, seconds: float) -> Row:
    potential = torchmdx.load(path, dtype=torch.float32, device=DEVICE)
    assert isinstance(potential, Potential)
    atoms = structure(run.system)
    atoms.set_array("initial_magmoms", None)
    relaxed = torchmdx.relax([atoms], potential, fmax=0.5, steps=200)[0].atoms
    system = System.from_ase(relaxed)
    options: dict[str, Any] = dict(timestep=run.timestep, temperature=TEMPERATURE, seed=1)
    if run.ensemble == "npt":
        options["barostat"] = CellRescaling(1.0, 1.0, run.compressibility)
    thermal = Dynamics(potential, system, integrator=Langevin(10.0), **options)
    begin = thermal.run(round(SETTLING * 1000 / run.timestep))
    dynamics = Dynamics(potential, system, integrator="verlet" if run.ensemble == "nve" else Langevin(1.0), **options)
    dynamics.restore(begin)
    values: dict[str, list[float]] = {"time": [], "energy": [], "temperature": [], "volume": []}
    steps, start = round(picoseconds * 1000 / run.timestep) // EVERY * EVERY, time.perf_counter()
    for found in dynamics.snapshots(steps, every=EVERY):
        values["time"].append(found.time / 1000)
        values["energy"].append(float(found.energy[0] + found.kinetic_energy[0]) / len(atoms))
        values["temperature"].append(float(found.temperature[0]))
        values["volume"].append(float(found.volume[0]) if atoms.pbc.all() else np.nan)
        if time.perf_counter() - start > seconds:
            break
    span, of = time.perf_counter() - start, {key: np.array(each) for key, each in values.items()}
    length = float(of["time"][-1]) - begin.time / 1000
    row: Row = dict(run=name, potential=run.potential, system=run.system, atoms=len(atoms), ensemble=run.ensemble)
    row |= dict(timestep_fs=run.timestep, picoseconds=round(length, 1), ns_day=round(length * 86.4 / span, 1))
    row |= rounded("temperature", of["temperature"], 2)
    row |= dict(recoveries=dynamics.num_recoveries, why=dynamics.why)
    if run.ensemble == "nve":
        found_slopes, error = drift.slopes(of["time"], of["energy"][:, None])
        row |= dict(drift_ev_atom_ps=float(f"{found_slopes[0]:.2e}"), error=float(f"{error:.1e}"))
        row |= dict(fluctuation_ev_atom=float(f"{of['energy'].std():.2e}"))
    if run.ensemble == "npt":
        if run.system.startswith("water"):
            row |= rounded("density_g_cm3", atoms.get_masses().sum() * GRAMS / of["volume"], 4)
        else:
            row |= rounded("lattice_constant_A", (of["volume"] / 27) ** (1 / 3), 4)
        row |= dict(experiment=run.known)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("RELEASED_POTENTIALS"))
    parser.add_argument("--rows", default=",".join(RUNS))
    parser.add_argument("--picoseconds", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=150.0)
    options = parser.parse_args()
    for name in options.rows.split(","):
        path = released.find(options.folder and Path(options.folder), RUNS[name].potential)
        if path is None:
            print(f"{RUNS[name].potential}: not in {options.folder}", flush=True)
            continue
        row = measure(name, RUNS[name], path, options.picoseconds, options.seconds)
        print(row, flush=True)
        record.update("long_runs", [row], ("run",))


if __name__ == "__main__":
    main()
