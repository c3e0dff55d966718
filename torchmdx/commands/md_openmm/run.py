"""A complete run of `torchmdx md --engine openmm`: from the structure to the output files."""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import openmm
from numpy.typing import NDArray

from torchmdx.commands.md_openmm.checkpoint import read_checkpoint
from torchmdx.commands.md_openmm.recorder import Recorder
from torchmdx.commands.md_openmm.simulation import Simulation, SimulationError
from torchmdx.commands.md_openmm.structure import Structure, read, require_movable, write_structure
from torchmdx.dynamics.log import LogRow
from torchmdx.dynamics.run import stages
from torchmdx.dynamics.run.continuation import CELL, DECIMALS
from torchmdx.dynamics.run.files import RunFiles
from torchmdx.dynamics.run.motion import origin_of_velocities
from torchmdx.dynamics.run.progress import SimulationProgress
from torchmdx.dynamics.run.settings import RunSettings, refuse_with_restart
from torchmdx.runtime.damaged_file import naming
from torchmdx.runtime.files import naming_writes
from torchmdx.runtime.interrupt import Interrupts
from torchmdx.runtime.output_lock import OutputLock
from torchmdx.structures.units import PICOSECOND

STORED = "stored velocities"  # in the settings: whether the run began with them
FIXED, NONE = "fixed atoms", "none"
SECONDS_A_PIECE = 0.2  # longest delay before a signal is handled


def run(options: argparse.Namespace, interrupts: Interrupts) -> int:
    """Runs the simulation of the command line; returns the exit status. `cli.main` prints the errors raised.

    Args:
        interrupts: A signal before the first step ends the run there, with a checkpoint.
    """
    settings, files = RunSettings.from_options(options), RunFiles(options.output, engine="openmm")
    refuse_with_restart(options)
    with OutputLock(options.output):
        if not (options.restart or options.overwrite):
            files.require_new()
        before = files.read_settings() if options.restart else {}
        structure = _read(options, settings)
        settings = stages.with_seed(settings, before)
        if options.restart:
            stored = bool(before.get(STORED, False))
        else:
            stored = stages.starts_with_stored(options, structure.velocities is not None, settings.ensemble)
        shared = {**settings_of(structure, settings), STORED: stored}
        if options.restart:
            files.require_settings(shared, {FIXED: NONE, STORED: False})
        return _run(options, structure, settings, files, shared, interrupts)


def _read(options: argparse.Namespace, settings: RunSettings) -> Structure:
    structure = read(
        options.file,
        index=options.index,
        charge=options.charge,
        vacuum=options.vacuum,
        ignore_constraints=options.ignore_constraints,
        hydrogen_mass=settings.hydrogen_mass,
    )
    require_movable(structure, settings.ensemble, options.file)
    return structure


def settings_of(structure: Structure, settings: RunSettings) -> dict[str, Any]:
    """Settings that a run and its restart must share, by their names in error messages."""
    atoms = structure.atomic_numbers.tobytes() + structure.masses.tobytes()
    return {
        "model (SHA-256)": settings.potential.digests(),
        "formula": structure.formula,
        "atoms (SHA-256 of elements and masses in order)": hashlib.sha256(atoms).hexdigest(),
        FIXED: ranges_of(np.flatnonzero(structure.fixed)),
        "charge in e": structure.charge,
        "periodic": structure.cell is not None,
        CELL: None if structure.cell is None else structure.cell.round(DECIMALS).tolist(),
        "ensemble": settings.ensemble,
        "timestep in fs": settings.timestep,
        "temperature in K": settings.temperature,
        "friction in 1/ps": settings.friction,
        "hydrogen mass in amu": settings.hydrogen_mass,
        "pressure in bar": settings.pressure,
        "barostat": settings.barostat,
        "seed": settings.seed,
        "steps between frames": settings.schedule.save_every,
        "steps between log rows": settings.schedule.log_every,
        "Coulomb cutoff in Å": settings.potential.coulomb_cutoff,
        "Coulomb energy": settings.potential.coulomb,
        "Coulomb accuracy": settings.potential.coulomb_accuracy,
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
    status = _go(simulation, recorder, interrupts)
    title = f"{Path(options.file).name}: {_ensemble(settings, stored)}; {settings.potential}"
    _finish(simulation, recorder, title, complete=status == 0, page=not options.no_page)
    return status


def _resume(simulation: Simulation, files: RunFiles) -> Recorder:
    exact, portable = files.path(".chk"), files.path(".xml")
    with naming(portable):
        why = simulation.restore(*read_checkpoint(files))
    if why is not None:
        print(f"restored from {portable} instead of {exact.name}: {why}")
    step = simulation.current_step
    stages.require_more_steps(step, simulation.settings.num_steps)
    print(f"continuing from step {step:,}")
    return Recorder.resume(simulation, files)


def _go(simulation: Simulation, recorder: Recorder, interrupts: Interrupts) -> int:
    """Integrates to the end or until a signal; returns the exit status. After a failure, saves the last valid state."""
    settings = simulation.settings
    progress = SimulationProgress(sys.stderr, simulation.current_step, settings.num_steps, settings.timestep)
    try:
        _integrate(simulation, recorder, progress, interrupts)
        recorder.save_checkpoint()
        progress.update(simulation.current_step, _newest(simulation, recorder), last=True)
    except SimulationError as error:
        raise SimulationError(f"{error}{recorder.after_failure()}") from error
    except BrokenPipeError:
        raise
    except OSError as error:
        raise stages.with_remedy(error, recorder.saved_step, f"step {simulation.current_step:,}: ") from error
    finally:
        progress.finish()
        recorder.close()
    return stages.status_after(interrupts, simulation.current_step, settings.num_steps)


def _integrate(
    simulation: Simulation, recorder: Recorder, progress: SimulationProgress, interrupts: Interrupts
) -> None:
    """Integrates in short pieces, for signals and the progress line; their lengths do not affect the trajectory."""
    step, end, inner = simulation.current_step, simulation.settings.num_steps, simulation.settings.inner
    piece = inner
    progress.update(step, recorder.row)
    while step < end and interrupts.received is None:
        target = min(simulation.settings.schedule.next_stop(step), step + piece, end)
        started = time.perf_counter()
        simulation.step(target - step)
        seconds = time.perf_counter() - started
        piece = max(inner, min(2 * piece, int(SECONDS_A_PIECE * (target - step) / max(seconds, 1e-9)) // inner * inner))
        step = target
        recorder.record()
        progress.update(step, recorder.row)


def _newest(simulation: Simulation, recorder: Recorder) -> LogRow:
    """The values of the current step, which the log may lack."""
    row = recorder.row
    return row if row is not None and row.step == simulation.current_step else simulation.measure()


def _finish(simulation: Simulation, recorder: Recorder, title: str, *, complete: bool, page: bool) -> None:
    """Writes the final structure of a complete run, the plot and the page, and prints a summary."""
    files, structure, settings = recorder.files, simulation.structure, simulation.settings
    written = [*files.trajectories, *files.logs]
    if complete:
        final = files.final(structure.suffix)
        with naming_writes(final):
            write_structure(structure, final, *simulation.geometry(), simulation.velocities())
        written.append(final)
    target = None if settings.ensemble == "nve" else settings.temperature
    written += stages.draw(files, title, target, structure.atomic_numbers, structure.labels(), page=page)
    print(stages.summary(files, recorder.outputs.trajectories[0].num_frames))
    print(stages.wrote([*written, files.path(".chk"), files.path(".xml")]))


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
    settings, structure = simulation.settings, simulation.structure
    box = "no box" if structure.cell is None else f"box of {abs(np.linalg.det(structure.cell)):.1f} Å³"
    length = settings.num_steps * settings.timestep / PICOSECOND
    place = f"{structure.place}, " if structure.place else ""
    fixed = f", {int(structure.fixed.sum())} fixed" if structure.fixed.any() else ""
    lines = [
        f"{file}: {place}{structure.formula}, {structure.num_atoms} atoms{fixed}, {box}, {structure.charge_text}",
        f"{_ensemble(settings, stored)}; {settings.num_steps:,} steps, {length:g} ps; seed {settings.seed}",
        f"potential {settings.potential}",
        *stages.about_fast(settings),
        f"OpenMM {openmm.__version__}, {simulation.platform} platform; "
        f"{simulation.force.transport} transport: {simulation.force.why}",
    ]
    if 1 not in structure.atomic_numbers and 6 in structure.atomic_numbers:
        lines.append("note: the structure has carbon but no hydrogen; add hydrogens if the file omits them")
    return "\n".join([*lines, *(f"note: {note}" for note in structure.notes)])
