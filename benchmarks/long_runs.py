"""Long runs of released potentials: drift, temperature, density, lattice constants, recoveries.

    python -m benchmarks.long_runs [FOLDER] [--rows water-npt,...] [--picoseconds 100] [--seconds 150] [--settling 5]

FOLDER (or $RELEASED_POTENTIALS) has the files and folders of `released_systems.POTENTIALS`; the runs are in
`long_run_cases`. float32, by `torchmdx.Dynamics` or, in rows that say so, by OpenMM with the potential added (Monte
Carlo barostat). Each run starts from a relaxed structure, of water from an equilibrated box
(benchmarks/liquid_water.py), after some ps with a friction of 10/ps. The smaller box, alanine dipeptide in 200
molecules of water, was equilibrated by OpenMM.
Steps of 2 fs of molecules are with hydrogens of 3 amu. Errors are standard errors from ten blocks of time, whose means
density_tenths has. drift: slope of the total energy, eV/atom/ps, at constant energy. recoveries: steps that were
repeated with a longer list. A run ends after --seconds, unless --picoseconds are covered before; its row is written
every REPORT seconds after 20 frames.

upstream_*: of crystals where matgl can be imported, its own results for FRAMES structures of the run: the mean pressure
(without kinetic energy) less that of torchmdx, GPa, and the largest difference of a force, eV/Å.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ase
import ase.units
import numpy as np
import torch
from numpy.typing import NDArray

import torchmdx
from benchmarks import drift, matgl_steps, record, released_systems
from benchmarks.long_run_cases import LIQUID, RUNS, Run, structure
from torchmdx import Batch, Dynamics, Potential, System
from torchmdx.dynamics import CellRescaling, Langevin
from torchmdx.dynamics.particles import with_heavy_hydrogens

Row = dict[str, Any]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BLOCKS, EVERY, FRAMES = 10, 50, 10
REPORT = 20.0  # s
TEMPERATURE = 300.0  # K
STRONG, WEAK = 10.0, 1.0  # friction while settling and then, 1/ps
KILOJOULE = ase.units.kJ / ase.units.mol  # a mole, in eV
GRAMS = 1.66053907  # of amu/Å³ in g/cm³


@dataclass(frozen=True)
class Frame:
    """Of a run: time ps, total energy eV/atom, temperature K, volume Å³, positions, cell, recoveries so far."""

    time: float
    energy: float
    temperature: float
    volume: float
    positions: NDArray[np.float64]
    cell: NDArray[np.float64]
    recoveries: int
    why: str = ""


def tenths(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means of blocks of time."""
    return values[: len(values) // BLOCKS * BLOCKS].reshape(BLOCKS, -1).mean(1)


def mean(values: NDArray[np.float64]) -> tuple[float, float]:
    """With the standard error, from blocks of time."""
    blocks = tenths(values)
    return float(blocks.mean()), float(blocks.std(ddof=1) / BLOCKS**0.5)


def rounded(name: str, values: NDArray[np.float64], digits: int) -> Row:
    found, error = mean(values)
    return {name: round(found, digits), f"{name}_error": round(error, digits)}


def by_dynamics(run: Run, potential: Potential, atoms: ase.Atoms, steps: int) -> Iterator[Frame]:
    options: dict[str, Any] = dict(timestep=run.timestep, temperature=TEMPERATURE, seed=1, hydrogen_mass=run.hydrogens)
    if run.ensemble == "npt":
        options["barostat"] = CellRescaling(1.0, 1.0, run.compressibility)
    system = System.from_ase(atoms)
    settled = Dynamics(potential, system, integrator=Langevin(STRONG), **options).run(steps_of(run, run.settling))
    dynamics = Dynamics(potential, system, integrator="verlet" if run.ensemble == "nve" else Langevin(WEAK), **options)
    dynamics.restore(settled)
    for found in dynamics.snapshots(steps, every=EVERY):
        yield Frame(
            time=(found.time - settled.time) / 1000,
            energy=float(found.energy[0] + found.kinetic_energy[0]) / len(atoms),
            temperature=float(found.temperature[0]),
            volume=float(found.volume[0]) if atoms.pbc.all() else np.nan,
            positions=found.positions,
            cell=found.cell[0],
            recoveries=dynamics.num_recoveries,
            why=dynamics.why,
        )


def by_openmm(run: Run, potential: Potential, atoms: ase.Atoms, steps: int) -> Iterator[Frame]:
    import openmm

    from benchmarks import openmm_steps, released_dynamics
    from torchmdx.openmm import add_potential

    topology = openmm_steps.topology_of(atoms.numbers, atoms.cell.array)
    system = openmm.System()
    masses = atoms.get_masses()
    if run.hydrogens is not None:
        masses, _ = with_heavy_hydrogens(Batch.of(System.from_ase(atoms)), masses, run.hydrogens)
    for mass in masses:
        system.addParticle(mass)
    force = add_potential(system, topology, potential)
    if run.ensemble == "npt":
        system.addForce(openmm.MonteCarloBarostat(1.0, TEMPERATURE))
    integrator = openmm.CompoundIntegrator()
    for friction in (STRONG, WEAK):
        integrator.addIntegrator(openmm.LangevinMiddleIntegrator(TEMPERATURE, friction, run.timestep / 1000))
    integrator.addIntegrator(openmm.VerletIntegrator(run.timestep / 1000))
    context = openmm.Context(system, integrator, *released_dynamics.platform())
    context.setPeriodicBoxVectors(*(atoms.cell.array * openmm_steps.NM))
    context.setPositions(atoms.positions * openmm_steps.NM)
    context.setVelocitiesToTemperature(TEMPERATURE, 1)
    integrator.step(steps_of(run, run.settling))
    integrator.setCurrentIntegrator(2 if run.ensemble == "nve" else 1)
    for step in range(EVERY, steps + 1, EVERY):
        integrator.step(EVERY)
        state = context.getState(energy=True, positions=True)
        kinetic, energy = (each._value * KILOJOULE for each in (state.getKineticEnergy(), state.getPotentialEnergy()))
        yield Frame(
            time=step * run.timestep / 1000,
            energy=(energy + kinetic) / len(atoms),
            temperature=kinetic / (1.5 * len(atoms) * ase.units.kB),
            volume=state.getPeriodicBoxVolume()._value / openmm_steps.NM**3,
            positions=state.getPositions(asNumpy=True)._value / openmm_steps.NM,
            cell=state.getPeriodicBoxVectors(asNumpy=True)._value / openmm_steps.NM,
            recoveries=force.num_recoveries,
        )


def steps_of(run: Run, picoseconds: float) -> int:
    """A multiple of EVERY."""
    return round(picoseconds * 1000 / run.timestep) // EVERY * EVERY


def start_of(run: Run, potential: Potential) -> ase.Atoms:
    """The structure that a run begins with."""
    atoms = structure(run.system)
    atoms.set_array("initial_magmoms", None)
    return atoms if run.system == LIQUID else torchmdx.relax([atoms], potential, fmax=0.5, steps=200)[0].atoms


def beside_upstream(path: Path, potential: Potential, atoms: ase.Atoms, frames: list[Frame]) -> Row:
    """Pressure and forces of matgl in some frames, compared with those of torchmdx."""
    import matgl
    from matgl.ext.ase import PESCalculator

    loaded = matgl.load_model(path)
    matgl_steps.read_as_released(loaded, path)
    calculators = (torchmdx.Calculator(potential), PESCalculator(potential=loaded.to(DEVICE), stress_unit="eV/A3"))
    pressures, forces = [], []
    for frame in frames[:: max(1, len(frames) // FRAMES)]:
        shown = ase.Atoms(atoms.numbers, frame.positions, cell=frame.cell, pbc=True)
        values = []
        for calculator in calculators:
            shown.calc = calculator
            values.append((-shown.get_stress()[:3].mean() / ase.units.GPa, shown.get_forces()))
        pressures.append(values[1][0] - values[0][0])
        forces.append(float(np.abs(values[1][1] - values[0][1]).max()))
    found = dict(upstream_pressure_GPa=float(np.mean(pressures)), upstream_force_eV_A=max(forces))
    return {key: float(f"{value:.1e}") for key, value in found.items()}


def measure(name: str, run: Run, path: str | Path, picoseconds: float, seconds: float) -> Iterator[Row]:
    """The row, every REPORT seconds and at the end."""
    potential = torchmdx.load(path, dtype=torch.float32, device=DEVICE)
    assert isinstance(potential, Potential)
    atoms, crystal = start_of(run, potential), run.system in ("Cu 108", "NaCl 216")
    frames: list[Frame] = []
    start, told = 0.0, 0.0  # the first frame is after settling and set-up
    frames_of = by_openmm if run.program == "OpenMM" else by_dynamics
    for frame in frames_of(run, potential, atoms, steps_of(run, picoseconds)):
        now = time.perf_counter()
        start, told = (start, told) if frames else (now, now)
        frames.append(frame if crystal else replace(frame, positions=frame.positions[:0]))
        if now - start > seconds:
            break
        if now - told > REPORT and len(frames) >= drift.BLOCKS:
            told = now
            yield row_of(name, run, atoms, frames, now - start)
    row = row_of(name, run, atoms, frames, time.perf_counter() - start)
    if crystal and importlib.util.find_spec("matgl") is None:
        print(f"{name}: without matgl, which cannot be imported", flush=True)
    elif crystal and "error" not in row:
        row |= beside_upstream(Path(path), potential, atoms, frames)
    yield row


def row_of(name: str, run: Run, atoms: ase.Atoms, frames: list[Frame], span: float) -> Row:
    """span: s between the first frame and the last. Of too few frames for errors, a row with an error only."""
    row: Row = dict(run=name, potential=run.potential, system=run.system, atoms=len(atoms), ensemble=run.ensemble)
    row |= dict(program=run.program, timestep_fs=run.timestep, hydrogens_amu=run.hydrogens)
    if len(frames) < drift.BLOCKS:
        return row | dict(error=f"no result: errors need at least {drift.BLOCKS} frames, got {len(frames)}; run longer")
    last = frames[-1]
    row |= dict(picoseconds=round(last.time, 1), ns_day=round((last.time - frames[0].time) * 86.4 / span, 1))
    row |= rounded("temperature", np.array([frame.temperature for frame in frames]), 2)
    return row | dict(recoveries=last.recoveries, why=last.why) | results(run, atoms, frames)


def results(run: Run, atoms: ase.Atoms, frames: list[Frame]) -> Row:
    """What a run at constant energy or pressure is made for."""
    row: Row = {}
    if run.ensemble == "nve":
        energies = np.array([frame.energy for frame in frames])
        found, error = drift.slopes(np.array([frame.time for frame in frames]), energies[:, None])
        row |= dict(drift_ev_atom_ps=float(f"{found[0]:.2e}"), drift_error=float(f"{error:.1e}"))
        row |= dict(fluctuation_ev_atom=float(f"{energies.std():.2e}"))
    if run.ensemble == "npt":
        volumes = np.array([frame.volume for frame in frames])
        if run.system == LIQUID:
            densities = atoms.get_masses().sum() * GRAMS / volumes
            row |= rounded("density_g_cm3", densities, 4) | dict(density_tenths=tenths(densities).round(4).tolist())
        else:
            row |= rounded("lattice_constant_A", (volumes / 27) ** (1 / 3), 4)
        row |= dict(experiment=run.known)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("RELEASED_POTENTIALS"))
    parser.add_argument("--rows", default=",".join(RUNS))
    parser.add_argument("--picoseconds", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--settling", type=float, help="ps; default: of each run")
    options = parser.parse_args()
    for name in options.rows.split(","):
        run = RUNS[name] if options.settling is None else replace(RUNS[name], settling=options.settling)
        path = released_systems.find(options.folder and Path(options.folder), run.potential)
        if path is None:
            print(f"{run.potential}: not in {options.folder}", flush=True)
            continue
        for row in measure(name, run, path, options.picoseconds, options.seconds):
            print(row, flush=True)
            if "error" not in row:
                record.update("long_runs", [row], ("run",))


if __name__ == "__main__":
    main()
