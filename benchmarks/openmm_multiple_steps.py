"""Multiple time steps with the difference between potential and force field: time, and conservation of energy.

    python -m benchmarks.openmm_multiple_steps [--platform CPU] [--time 0.5]

Alanine dipeptide in vacuum, all of it described by organic-1, amber14 as the fast forces (`difference_group`). NVE from
300 K after a minimisation, with MTSIntegrator; "Verlet" evaluates everything in each step. drift is the slope of the
total energy, fluctuation its standard deviation around that line.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import openmm
from openmm import app, unit

from benchmarks.record import write
from torchmdx.openmm import create_mixed_system

PDB = Path(__file__).with_name("structures") / "alanine_dipeptide.pdb"
# Time steps of the potential and of the force field in fs.
STEPS = ((0.5, 0.5), (1.0, 0.5), (1.5, 0.5), (2.0, 0.5))
EQUILIBRATION, SAMPLES = 0.05, 50  # ps


def split_system() -> tuple[openmm.System, Any]:
    pdb = app.PDBFile(str(PDB))
    force_field = app.ForceField("amber14-all.xml").createSystem(pdb.topology)
    atoms = range(pdb.topology.getNumAtoms())
    options = dict(difference_group=1, energy_offset="atoms")
    return create_mixed_system(force_field, pdb.topology, atoms, **options), pdb.positions


def integrator_of(outer: float, inner: float) -> openmm.Integrator:
    if outer == inner:
        return openmm.VerletIntegrator(outer * unit.femtosecond)
    return openmm.MTSIntegrator(outer * unit.femtosecond, [(1, 1), (0, round(outer / inner))])


def measure(system: openmm.System, positions: Any, outer: float, inner: float, options: Any) -> dict[str, Any]:
    platform = openmm.Platform.getPlatformByName(options.platform)
    integrator = integrator_of(outer, inner)
    context = openmm.Context(system, integrator, platform)
    context.setPositions(positions)
    openmm.LocalEnergyMinimizer.minimize(context, 1, 100)
    context.setVelocitiesToTemperature(300, 7)
    integrator.step(round(EQUILIBRATION * 1e3 / outer))
    every = max(1, round(options.time * 1e3 / outer / SAMPLES))
    times, energies, seconds = [], [], 0.0
    for sample in range(SAMPLES):
        start = time.process_time() if options.platform == "CPU" else time.perf_counter()
        integrator.step(every)
        state = context.getState(energy=True)
        energies.append((state.getPotentialEnergy() + state.getKineticEnergy())._value)
        seconds += (time.process_time() if options.platform == "CPU" else time.perf_counter()) - start
        times.append((sample + 1) * every * outer * 1e-3)
    line = np.polyfit(times, energies, 1)
    return dict(
        platform=options.platform, outer_fs=outer, inner_fs=inner, evaluations_per_ps=round(1e3 / outer),
        seconds_per_ps=round(seconds / times[-1], 2), drift_kj_per_mol_ps=round(float(line[0]), 3),
        fluctuation_kj_per_mol=round(float(np.std(energies - np.polyval(line, times))), 3),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--platform", default="CPU")
    parser.add_argument("--time", type=float, default=0.5, help="ps of each run")
    options = parser.parse_args()
    system, positions = split_system()
    rows = []
    for outer, inner in STEPS:
        rows.append(measure(system, positions, outer, inner, options))
        print(rows[-1], flush=True)
    print(write("openmm_multiple_steps", rows))


if __name__ == "__main__":
    main()
