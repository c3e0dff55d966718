"""Times dynamics with released potentials: torchmdx.Dynamics, OpenMM with the native force, and openmm-ml.

    python -m benchmarks.released_dynamics [FOLDER] [--rows aceff-2.0/dhfr,...] [--programs NAMES] [--seconds 120]
                                           [--compile-seconds 300]

FOLDER as for benchmarks.released. Langevin at 300 K and 1 fs; OpenMM in mixed precision. Atoms of 10⁸ amu hardly move,
so that all steps have the edges of the first one. openmm-ml loads the same file into torchmd-net; in a box its Coulomb
energies have a reaction field beyond 12 Å. NAMES are separated by semicolons. Each row runs in a process of its own:
they set up side by side and are timed one after the other (benchmarks/in_turn.py), for at most --seconds each.

openmm-ml 1.8 evaluates the network eagerly once and then compiles it by torch.compile in the mode reduce-overhead; it
has no option for another way. Where CUDA graphs fail in OpenMM's thread (its issue 128), it compiles all again, in the
mode default. So its rows come last, one after the other, with all processors, for at most --compile-seconds each. "not
compiled" is the same program without torch.compile.

Each row is written to released_dynamics.json when it is measured, in place of that of an earlier run. openmm-ml is
compared with rows of the same commit and device.

step_ms: wall clock over many steps, the median of five stretches. setup_s: from the structure to the first step.
ready_s: to the 61st, when all is compiled. J_per_ns, watts: of the whole GPU (benchmarks/energy.py). speedup, saving:
over openmm-ml in its best mode; only where it was timed as it is, compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openmm
import torch

from benchmarks import energy, in_turn, openmm_steps, record, released, released_systems
from torchmdx import Dynamics, Potential, System, load
from torchmdx.dynamics import Langevin
from torchmdx.openmm import add_potential

Row = dict[str, Any]
Advance = Callable[[int], None]
Case = tuple[str, Row]  # the file or folder of a potential, and a row without results
SYSTEMS = {
    "aceff-1.1": ("alanine_dipeptide", "chignolin", "dhfr", "peptide_in_water"),
    "aceff-2.0": ("alanine_dipeptide", "chignolin", "dhfr", "peptide_in_water 12 Å"),
}
PEER, EAGER = "openmm-ml", "openmm-ml, not compiled"
OURS = ("Dynamics", "OpenMM")
PROGRAMS = (*OURS, EAGER, PEER)
A_RUN = 20  # steps


def by_dynamics(path: str, name: str) -> Advance:
    potential = load(
        path, dtype=torch.float32, device=released.DEVICE, coulomb_cutoff=released_systems.CUTOFFS.get(name)
    )
    assert isinstance(potential, Potential)
    atoms = released_systems.structure(name)
    masses = np.full(len(atoms), openmm_steps.MASS)
    dynamics = Dynamics(
        potential, System.from_ase(atoms), integrator=Langevin(1.0), timestep=1.0, steps_per_replay=A_RUN, masses=masses
    )
    return lambda steps: (dynamics.run(steps), None)[1]


def by_openmm(path: str, name: str, program: str) -> Advance:
    atoms = released_systems.structure(name)
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
        add_potential(system, topology, path, coulomb_cutoff=released_systems.CUTOFFS.get(name))
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
    ready = time.perf_counter() - start
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
        atoms=len(released_systems.structure(name)),
        step_ms=round(step * 1e3, 4),
        ns_day=round(86400e-6 / step, 1),
        setup_s=round(setup, 2),
        ready_s=round(ready, 2),
        **energy.per_ns(lambda: advance(together), steps=together),
    )


def cases(folder: Path | None, chosen: Sequence[str], programs: Sequence[str]) -> Iterator[Case]:
    """The rows to measure: of all that are chosen, POTENTIAL/SYSTEM or POTENTIAL, or of all."""
    for potential, names in SYSTEMS.items():
        path = released_systems.find(folder, potential)
        if path is None:
            print(f"{potential}: not in {folder}", flush=True)
            continue
        for name in names:
            if not chosen or {potential, f"{potential}/{name}"} & set(chosen):
                yield from ((str(path), dict(potential=potential, system=name, program=one)) for one in programs)


def measured(found: Sequence[Case], seconds: float, compile_seconds: float, at_once: int | None) -> Iterator[Row]:
    """Each row when it is measured: of torchmdx, of openmm-ml, and last of openmm-ml compiled, one at a time."""
    stages = [(OURS, seconds, at_once), ((EAGER,), seconds, at_once), ((PEER,), compile_seconds, 1)]
    for those, limit, together in stages:
        group = [(path, head) for path, head in found if head["program"] in those]
        arguments = [json.dumps([path, head["system"], head["program"]]) for path, head in group]
        commands = [[sys.executable, "-m", "benchmarks.released_dynamics", "--child", one] for one in arguments]
        for (_, head), ended in zip(group, in_turn.run(commands, limit, together), strict=True):
            yield row_of(head, ended)


def row_of(head: Row, ended: in_turn.Ended) -> Row:
    """The row of a process, with an error if it ended early."""
    found = in_turn.rows(ended)
    return head | (found[-1] if found else dict(error=f"{ended.why}: {ended.errors.strip()[-200:]}"))


def compared(rows: list[Row]) -> list[Row]:
    """With the factors to openmm-ml in its best mode; none where it was not timed as it is, which may be the best."""
    if not any(row["program"] == PEER and "step_ms" in row for row in rows):
        return rows
    for name, key in (("speedup", "step_ms"), ("saving", "J_per_ns")):
        peers = [row[key] for row in rows if row["program"] not in OURS and key in row]
        for row in rows:
            if row["program"] in OURS and key in row and peers:
                row[name] = round(min(peers) / row[key], 2)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("RELEASED_POTENTIALS"))
    parser.add_argument("--rows", default="", help="only these, POTENTIAL/SYSTEM or POTENTIAL, comma-separated")
    parser.add_argument("--programs", default=";".join(PROGRAMS))
    parser.add_argument("--seconds", type=float, default=120, help="limit for each row (default: 120)")
    parser.add_argument(
        "--compile-seconds", type=float, default=300, help=f"limit for each row of {PEER} (default: 300)"
    )
    parser.add_argument("--at-once", type=int, help="processes that set up side by side (default: half the processors)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(*json.loads(options.child))), flush=True)
        return
    chosen = [name for name in options.rows.split(",") if name]
    found = list(cases(options.folder and Path(options.folder), chosen, options.programs.split(";")))
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)  # rows that are compared with each other
    for row in record.current("released_dynamics"):
        groups[row["potential"], row["system"]].append(row)
    for row in measured(found, options.seconds, options.compile_seconds, options.at_once):
        print(row, flush=True)
        rows = groups[row["potential"], row["system"]]
        rows[:] = [one for one in rows if one["program"] != row["program"]] + [row]
        record.update("released_dynamics", compared(rows), ("potential", "system", "program"))


if __name__ == "__main__":
    main()
