"""How long runs with general fast models of organic-1 last: until the potentials disagree, and until they blow up.

    python -m benchmarks.multiple_steps_lasting --folder F [--fast organic-1-fast,FILE] [--seconds 3]

Langevin at 300 K with 1/ps, without and with hydrogens of 3 amu: 128 replicas of alanine dipeptide, eight of a box of
216 molecules of water, and six of each of twenty molecules of organic-1's test set, from the folder of
`benchmarks.multiple_steps_physics start`, or from where they are. A run has the default `max_force_difference` until it
ends in a disagreement, and none after it. It ends after MOST ps, or --seconds, or when a replica has three times
the temperature.

- agrees_ps, lasts_ps: until the first disagreement, and until the end, of each replica
- ended: why, empty if it was not
- rmse_mev_a, mae_mev_a, relative: errors of forces at outer steps, in frames before the first disagreement
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import torch

from benchmarks.record import write
from benchmarks.systems import load
from torchmdx import Dynamics, Potential, System
from torchmdx.checkpoints.save_load import load_one
from torchmdx.dynamics.integrators import Langevin
from torchmdx.dynamics.multiple_steps import DisagreementError
from torchmdx.step.results import NonFiniteError, StepError

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MOLECULES = Path(__file__).resolve().parent.parent / "recipes" / "organic_1" / "dynamics_start.xyz"
REPLICAS = {"alanine_dipeptide": 128, "water216": 8, "molecules": 6}
SETTINGS = ((None, 0.5, 4), (None, 1.0, 2), (3.0, 2.0, 2), (3.0, 1.0, 4))  # mass of hydrogens, fs, inner steps
TEMPERATURE, FRICTION, HOT = 300.0, 1.0, 3.0
MOST, SPACING = 50.0, 0.024  # ps, of a run and between looks
NO_LIMIT, GRAPH = 1e6, 12  # eV/Å, steps of a graph
Row = dict[str, Any]


def systems_of(name: str, folder: Path, replicas: int) -> list[System]:
    """Replicas of a structure, or of each molecule."""
    if name == "molecules":
        return [System.from_ase(atoms) for atoms in ase.io.read(MOLECULES, ":") for _ in range(replicas)]
    path = folder / f"{name}.start.npz"
    if path.exists():
        with np.load(path) as held:
            numbers, frames, cell = held["numbers"], held["frames"], held.get("cell")
    else:
        numbers, positions, cell = load(name)
        frames = np.tile(positions, (replicas, 1, 1))
    return [System.create(frame, numbers, cell, None if cell is None else True) for frame in frames[:replicas]]


class Errors:
    """Of forces, in frames."""

    def __init__(self) -> None:
        self.squares: list[float] = []
        self.absolute: list[float] = []
        self.whole: list[float] = []

    def add(self, found: Any) -> None:
        if found.step:
            wrong = found.forces - found.fast_forces
            self.squares.append(float((wrong**2).mean()))
            self.absolute.append(float(abs(wrong).mean()))
            self.whole.append(float((found.forces**2).mean()))

    def row(self) -> Row:
        if not self.squares:
            return {}
        square, whole = np.mean(self.squares), np.mean(self.whole)
        return dict(
            rmse_mev_a=round(1e3 * float(np.sqrt(square)), 1),
            mae_mev_a=round(1e3 * float(np.mean(self.absolute)), 1),
            relative=round(float(np.sqrt(square / whole)), 4),
        )


def stretch(dynamics: Dynamics, every: int, seconds: float, most: float, errors: Errors | None) -> str:
    """Why a run ended; empty if it reached its time."""
    try:
        dynamics.run(GRAPH)
        until = time.perf_counter() + seconds
        while dynamics.num_steps < most and time.perf_counter() < until:
            for found in dynamics.snapshots(10 * every, every=every):
                if errors is not None:
                    errors.add(found)
                hottest = float(found.temperature.max())
                if not hottest < HOT * TEMPERATURE:
                    return f"{hottest:.0f} K"
    except (StepError, NonFiniteError) as error:
        return _said(error)
    return ""


def lasting(potential: Potential, fast: Potential, systems: list[System], setting: Any, seconds: float) -> Row:
    """A run: its first part with the default limit, and what follows without."""
    mass, timestep, inner = setting
    given: dict[str, Any] = dict(
        integrator=Langevin(FRICTION), temperature=TEMPERATURE, seed=1, hydrogen_mass=mass, timestep=timestep,
        fast=fast, inner=inner, steps_per_replay=GRAPH,
    )  # fmt: skip
    every, most = GRAPH * round(1e3 * SPACING / (GRAPH * timestep)), round(1e3 * MOST / timestep)
    errors, state = Errors(), None
    try:
        dynamics = Dynamics(potential, systems, **given)
        ended = stretch(dynamics, every, seconds, most, errors)
        state = dynamics.snapshot()
    except DisagreementError as error:  # where it starts
        ended = _said(error)
    row: Row = dict(agrees_ps=0.0 if state is None else state.time / 1000, **errors.row())
    if ended.startswith(DisagreementError.__name__):
        dynamics = Dynamics(potential, systems, **given, max_force_difference=NO_LIMIT)
        if state is not None:
            dynamics.restore(state)
        row["disagreed"] = ended[:200]
        ended = stretch(dynamics, every, seconds, most, None)
    return row | dict(lasts_ps=dynamics.num_steps * timestep / 1000, ended=ended[:200])


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(';')[0]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("."))
    parser.add_argument("--potential", default="organic-1")
    parser.add_argument("--match", default="", help="regular expression of settings, such as 3.0-2.0x2")
    parser.add_argument("--fast", default="organic-1-fast")
    parser.add_argument("--names", default=",".join(REPLICAS))
    parser.add_argument("--replicas", type=int, help="of each, instead of 128, 8 and 6")
    parser.add_argument("--seconds", type=float, default=3.0, help="wall time of each part of a run")
    parser.add_argument("--record", default="multiple_steps_lasting")
    options = parser.parse_args()
    potential = load_one(options.potential, dtype=torch.float32, device=DEVICE)
    rows = []
    for name in options.names.split(","):
        systems = systems_of(name, options.folder, options.replicas or REPLICAS[name])
        for file in options.fast.split(","):
            fast = load_one(file, dtype=torch.float32, device=DEVICE)
            for setting in [one for one in SETTINGS if re.search(options.match, "{}-{}x{}".format(*one))]:
                row: Row = dict(
                    potential=Path(options.potential).stem, fast=Path(file).stem, system=name, replicas=len(systems)
                )
                row |= dict(hydrogen_mass=setting[0] or "normal", step_fs=setting[1], inner=setting[2])
                row |= lasting(potential, fast, systems, setting, options.seconds)
                rows.append(row)
                print(row, flush=True)
                write(options.record, rows)


if __name__ == "__main__":
    main()
