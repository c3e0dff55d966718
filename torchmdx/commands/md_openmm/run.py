"""A complete run of `torchmdx md --engine openmm`: from the structure to the output files."""

from __future__ import annotations

import argparse
import hashlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import openmm
from numpy.typing import NDArray

from torchmdx.commands.md_openmm.checkpoint import read_checkpoint, restore
from torchmdx.commands.md_openmm.recorder import Recorder
from torchmdx.commands.md_openmm.simulation import Simulation
from torchmdx.commands.md_openmm.structure import Structure, read, write_structure
from torchmdx.dynamics.run import stages
from torchmdx.dynamics.run.continuation import CELL, DECIMALS
from torchmdx.dynamics.run.files import RunFiles
from torchmdx.dynamics.run.motion import origin_of_velocities
from torchmdx.dynamics.run.settings import RunSettings
from torchmdx.runtime.damaged_file import naming
from torchmdx.runtime.interrupt import Interrupts
from torchmdx.runtime.output_lock import OutputLock

STORED = "stored velocities"  # in the settings: whether the run began with them
FIXED, NONE = "fixed atoms", "none"


def run(options: argparse.Namespace, interrupts: Interrupts) -> int:
    """Runs the simulation of the command line; returns the exit status. `cli.main` prints the errors raised.

    Args:
        interrupts: A signal before the first step ends the run there, with a checkpoint.
    """
    settings, files = RunSettings.from_options(options), RunFiles(options.output, engine="openmm")
    with OutputLock(options.output):
        if not (options.restart or options.overwrite):
            files.require_new()
        before = files.read_settings() if options.restart else {}
        structure = read(options)
        settings = stages.with_seed(settings, before)
        if options.restart:
            stored = bool(before.get(STORED, False))
        else:
            stored = stages.starts_with_stored(options, structure.velocities is not None, settings.ensemble)
        shared = {**settings_of(structure, settings), STORED: stored}
        if options.restart:
            files.require_settings(shared, {FIXED: NONE, STORED: False})
        return _run(options, structure, settings, files, shared, interrupts)


def settings_of(structure: Structure, settings: RunSettings) -> dict[str, Any]:
    """Settings that a run and its restart must share, by their names in error messages."""
    atoms = structure.atomic_numbers.tobytes() + structure.masses.tobytes()
    return {
        **settings.shared(),
        "formula": structure.record.atoms.get_chemical_formula(),
        "atoms (SHA-256 of elements and masses in order)": hashlib.sha256(atoms).hexdigest(),
        FIXED: ranges_of(np.flatnonzero(structure.fixed)),
        "charge in e": structure.record.charge,
        "periodic": structure.cell is not None,
        CELL: None if structure.cell is None else structure.cell.round(DECIMALS).tolist(),
        "ensemble": settings.ensemble,
        "timestep in fs": settings.timestep,
        "temperature in K": settings.temperature,
        "friction in 1/ps": settings.friction,
        "pressure in bar": settings.pressure,
        "barostat": settings.barostat,
        "steps between frames": settings.schedule.save_every,
        "steps between log rows": settings.schedule.log_every,
        **({} if settings.fast is None else settings.fast.shared()),
    }


def ranges_of(numbers: NDArray[np.int64]) -> str:
    """Numbers as "0-3 7", "none" without any."""
    starts = [k for k, number in enumerate(numbers) if k == 0 or numbers[k - 1] + 1 != number]
    runs = [numbers[a:b] for a, b in pairwise([*starts, len(numbers)])]
    return " ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs) or NONE


def _run(
    options: argparse.Namespace,
    structure: Structure,
    settings: RunSettings,
    files: RunFiles,
    shared: dict[str, Any],
    interrupts: Interrupts,
) -> int:
    """The run itself. shared: the settings that a restart must share."""
    stages.warn_of_timestep(structure, settings.timestep, settings.inner)
    simulation, stored = Simulation(structure, settings), shared[STORED]
    print(_description(options.file, simulation, stored))
    if options.restart:
        recorder = _resume(simulation, files)
    else:
        simulation.start(minimize=options.minimize, velocities=structure.velocities if stored else None)
        recorder = Recorder.begin(simulation, files, shared)
        origin = origin_of_velocities(stored, structure.scaled)
        print(f"velocities: {origin}, {simulation.measure().temperature:.0f} K")
    status = stages.go(recorder, settings, interrupts, restart=options.restart)

    def write_final(path: Path) -> None:
        write_structure(structure, path, *simulation.geometry(), simulation.velocities())

    motion = _ensemble(settings, stored)
    stages.finish(options, recorder, structure, settings, motion, write_final if status == 0 else None)
    return status


def _resume(simulation: Simulation, files: RunFiles) -> Recorder:
    exact, portable = files.restarts
    with naming(portable):
        why = restore(simulation.context, *read_checkpoint(files))
    if why is not None:
        print(f"restored from {portable} instead of {exact.name}: {why}")
    stages.require_more_steps(simulation.current_step, simulation.settings.num_steps)  # before files are cut
    return Recorder.resume(simulation, files)


def _ensemble(settings: RunSettings, stored: bool) -> str:
    """stored: whether the run starts with velocities of the file."""
    parts = [f"{settings.ensemble.upper()}"]
    if settings.friction is not None:
        parts.append(f"{settings.temperature:g} K")
    elif not stored:
        parts.append(f"from {settings.temperature:g} K")
    if settings.friction is not None:
        parts.append(f"friction {settings.friction:g}/ps")
    if settings.pressure is not None:
        parts.append(f"{settings.pressure:g} bar {settings.barostat}")
    if settings.hydrogen_mass is not None:
        parts.append(f"hydrogens of {settings.hydrogen_mass:g} amu")
    return ", ".join([*parts, f"{settings.timestep:g} fs"])


def _description(file: str, simulation: Simulation, stored: bool) -> str:
    settings, structure, force = simulation.settings, simulation.structure, simulation.force
    box = "no box" if structure.cell is None else f"box of {abs(np.linalg.det(structure.cell)):.1f} Å³"
    lines = [
        *stages.description(file, structure, box, _ensemble(settings, stored), settings),
        f"OpenMM {openmm.__version__}, {simulation.platform} platform; {force.transport} transport: {force.why}",
    ]
    if 1 not in structure.atomic_numbers and 6 in structure.atomic_numbers:
        lines.append("note: the structure has carbon but no hydrogen; add hydrogens if the file omits them")
    return "\n".join([*lines, *(f"note: {note}" for note in structure.notes)])
