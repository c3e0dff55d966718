"""Times dynamics with released potentials: torchmdx.Dynamics, OpenMM with the native force, and openmm-ml.

    python -m benchmarks.released_dynamics [FOLDER] [--rows aceff-2.0/dhfr,...] [--programs NAMES] [--seconds 120]

FOLDER as for benchmarks.released. Langevin at 300 K and 1 fs; OpenMM in mixed precision. Atoms of 10⁸ amu hardly move,
so that all steps have the edges of the first one. openmm-ml loads the same file into torchmd-net and compiles it; "not
compiled" is without torch.compile, where that fails or takes too long. In a box its Coulomb energies have a reaction
field beyond 12 Å. NAMES are separated by semicolons. Each row runs in a process of its own: they set up side by side
and are timed one after the other (benchmarks/in_turn.py), for at most --seconds each. A row replaces that of an earlier
run in released_dynamics.json.

step_ms: wall clock over many steps, the median of five stretches. setup_s: from the structure to the first step.
J_per_ns, watts: of the whole GPU (benchmarks/energy.py). speedup, saving: over openmm-ml in its best mode.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openmm
import torch

from benchmarks import energy, in_turn, openmm_steps, record, released
from torchmdx import Dynamics, Potential, System, load
from torchmdx.dynamics import Langevin
from torchmdx.openmm import add_potential

Row = dict[str, Any]
Advance = Callable[[int], None]
SYSTEMS = {
    "aceff-1.1": ("alanine_dipeptide", "chignolin", "dhfr", "peptide_in_water"),
    "aceff-2.0": ("alanine_dipeptide", "chignolin", "dhfr", "peptide_in_water 12 Å"),
}
PEER, EAGER = "openmm-ml", "openmm-ml, not compiled"
PROGRAMS = ("Dynamics", "OpenMM", PEER, EAGER)
A_RUN = 20  # steps


def by_dynamics(path: str, name: str) -> Advance:
    potential = load(path, dtype=torch.float32, device=released.DEVICE, coulomb_cutoff=released.CUTOFFS.get(name))
    assert isinstance(potential, Potential)
    atoms = released.structure(name)
    masses = np.full(len(atoms), openmm_steps.MASS)
    dynamics = Dynamics(
        potential, System.from_ase(atoms), integrator=Langevin(1.0), timestep=1.0, steps_per_replay=A_RUN, masses=masses
    )
    return lambda steps: (dynamics.run(steps), None)[1]


def by_openmm(path: str, name: str, program: str) -> Advance:
    atoms = released.structure(name)
    topology = openmm_steps.topology_of(atoms.numbers, atoms.cell.array if atoms.pbc.all() else None)
    if program in (PEER, EAGER):
        from openmmml import MLPotential

        if program == EAGER:
            torch.compile = lambda model, **_: model
        system = MLPotential("torchmdnet", modelPath=path).createSystem(topology)
        for i in range(system.getNumParticles()):
            system.setParticleMass(i, openmm_steps.MASS)
    else:
        system = openmm_steps.system_of(topology)
        add_potential(system, topology, path, coulomb_cutoff=released.CUTOFFS.get(name))
    integrator = openmm.LangevinMiddleIntegrator(300, 1.0, 0.001)
    context = openmm.Context(system, integrator, *platform())
    context.setPositions(atoms.positions * openmm_steps.NM)

    def advance(steps: int) -> None:
        integrator.step(steps)
        context.getState(energy=True, groups={31})  # waits for the GPU, without another evaluation

    return advance


def platform() -> tuple[Any, ...]:
    if not released.GPU:
        return (openmm.Platform.getPlatformByName("CPU"),)
    return openmm.Platform.getPlatformByName("CUDA"), {"Precision": "mixed"}


def measure(path: str, name: str, program: str) -> Row:
    """One row. The first stretches compile kernels and graphs."""
    start = time.perf_counter()
    advance = by_dynamics(path, name) if program == "Dynamics" else by_openmm(path, name, program)
    advance(1)
    setup = time.perf_counter() - start
    for _ in range(3):
        advance(A_RUN)
    in_turn.my_turn()
    start = time.perf_counter()
    advance(A_RUN)
    once = (time.perf_counter() - start) / A_RUN
    count = max(A_RUN, int(0.5 / once) // A_RUN * A_RUN)
    steps = []
    for _ in range(5):
        start = time.perf_counter()
        advance(count)
        steps.append((time.perf_counter() - start) / count)
    step = statistics.median(steps)
    together = max(1, min(A_RUN, int(2.0 / step / energy.TOGETHER)))  # bursts of two seconds for slow programs
    return dict(
        atoms=len(released.structure(name)),
        step_ms=round(step * 1e3, 4),
        ns_day=round(86400e-6 / step, 1),
        setup_s=round(setup, 2),
        **energy.per_ns(lambda: advance(together), steps=together),
    )


def row_of(head: Row, ended: in_turn.Ended) -> Row:
    """The row of a process, with an error if it ended early."""
    found = in_turn.rows(ended)
    return head | (found[-1] if found else dict(error=f"{ended.why}: {ended.errors.strip()[-200:]}"))


def compared(rows: list[Row]) -> list[Row]:
    """With the factors to openmm-ml in its best mode."""
    for name, key in (("speedup", "step_ms"), ("saving", "J_per_ns")):
        peers = [row[key] for row in rows if row["program"] in (PEER, EAGER) and key in row]
        for row in rows:
            if row["program"] not in (PEER, EAGER) and key in row and peers:
                row[name] = round(min(peers) / row[key], 2)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("RELEASED_POTENTIALS"))
    parser.add_argument("--rows", default="", help="only these, POTENTIAL/SYSTEM or POTENTIAL, comma-separated")
    parser.add_argument("--programs", default=";".join(PROGRAMS))
    parser.add_argument("--seconds", type=float, default=120, help="limit for each row (default: 120)")
    parser.add_argument("--at-once", type=int, help="processes that set up side by side (default: half the processors)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(*json.loads(options.child))), flush=True)
        return
    chosen = [name for name in options.rows.split(",") if name]
    heads, commands = [], []
    for potential, names in SYSTEMS.items():
        path = released.find(options.folder and Path(options.folder), potential)
        if path is None:
            print(f"{potential}: not in {options.folder}", flush=True)
            continue
        for name in names:
            if chosen and potential not in chosen and f"{potential}/{name}" not in chosen:
                continue
            for program in options.programs.split(";"):
                heads.append(dict(potential=potential, system=name, program=program))
                arguments = ["--child", json.dumps([str(path), name, program])]
                commands.append([sys.executable, "-m", "benchmarks.released_dynamics", *arguments])
    rows: dict[tuple[str, str], list[Row]] = {}
    for head, ended in zip(heads, in_turn.run(commands, options.seconds, options.at_once), strict=True):
        found = rows.setdefault((head["potential"], head["system"]), [])
        found.append(row_of(head, ended))
        print(found[-1], flush=True)
        record.update("released_dynamics", compared(found), ("potential", "system", "program"))


if __name__ == "__main__":
    main()
