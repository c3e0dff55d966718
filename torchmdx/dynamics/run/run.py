"""A complete run of `torchmdx md`: from the structure to the output files."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import openmm

from torchmdx.dynamics.log import Row, read_log
from torchmdx.dynamics.run.files import Files, require_same, settings_of
from torchmdx.dynamics.run.motion import origin_of_velocities
from torchmdx.dynamics.run.plot import plot_log
from torchmdx.dynamics.run.progress import SimulationProgress
from torchmdx.dynamics.run.recorder import Recorder
from torchmdx.dynamics.run.settings import LARGEST_SEED, Dynamics, PotentialSettings, Schedule
from torchmdx.dynamics.run.simulation import Simulation, SimulationError
from torchmdx.dynamics.run.structure import Structure, read, require_movable, with_heavy_hydrogens, write_structure
from torchmdx.dynamics.run.timestep import doubt_about_timestep
from torchmdx.report.view.run_page import write_run_page
from torchmdx.runtime.damaged_file import naming
from torchmdx.runtime.files import naming_writes
from torchmdx.runtime.interrupt import Interrupts
from torchmdx.runtime.output_lock import OutputLock
from torchmdx.structures.units import PICOSECOND

STORED = "stored velocities"  # in the settings: whether the run began with them
SECONDS_A_PIECE = 0.2  # longest delay before a signal is handled


def run(options: argparse.Namespace, interrupts: Interrupts) -> int:
    """Runs the simulation of the command line; returns the exit status. `cli.main` prints the errors raised.

    interrupts: a signal before the first step ends the run there, with a checkpoint.
    """
    dynamics, schedule = Dynamics.from_options(options), Schedule.from_options(options)
    potential_settings = PotentialSettings.from_options(options)
    structure = read(
        options.file,
        index=options.index,
        charge=options.charge,
        vacuum=options.vacuum,
        ignore_constraints=options.ignore_constraints,
    )
    read_masses = structure.masses
    if dynamics.hydrogen_mass is not None:
        structure = with_heavy_hydrogens(structure, dynamics.hydrogen_mass)
    require_movable(structure, dynamics.ensemble, options.file)
    files = Files(options.output, structure.suffix)
    with OutputLock(options.output):
        settings = settings_of(structure, dynamics, schedule, potential_settings)
        dynamics, stored = _continued(options, files, structure, dynamics, settings)
        scaled = not np.array_equal(read_masses, structure.masses)
        return _run(
            options, structure, dynamics, schedule, potential_settings, files, settings, stored, scaled, interrupts
        )


def _continued(
    options: argparse.Namespace, files: Files, structure: Structure, dynamics: Dynamics, settings: dict[str, Any]
) -> tuple[Dynamics, bool]:
    """The dynamics with a seed, which `settings` gets too, and whether the run starts with stored velocities.

    Raises FileExistsError for files of an earlier run, and ValueError for a restart with other settings.
    """
    if options.restart:
        _refuse_start_options(options)
        before = files.read_settings()
        seed = before.get("seed") if dynamics.seed is None else dynamics.seed
        settings["seed"] = seed
        require_same(before, settings, files.settings)
        stored = before.get(STORED, False)
    else:
        if not options.overwrite:
            files.require_new()
        seed = dynamics.seed
        if seed is None:
            seed = int(np.random.default_rng().integers(LARGEST_SEED + 1))
        settings["seed"] = seed
        stored = _starts_with_stored(options, structure, dynamics)
    return dataclasses.replace(dynamics, seed=seed), stored


def _run(
    options: argparse.Namespace,
    structure: Structure,
    dynamics: Dynamics,
    schedule: Schedule,
    potential_settings: PotentialSettings,
    files: Files,
    settings: dict[str, Any],
    stored: bool,
    scaled: bool,
    interrupts: Interrupts,
) -> int:
    """The run itself. stored: whether it starts with velocities of the file, scaled: to other masses."""
    assert dynamics.seed is not None
    doubt = doubt_about_timestep(structure, dynamics.timestep)
    if doubt is not None:
        warnings.warn(doubt, stacklevel=2)
    simulation = Simulation(structure, dynamics, potential_settings, dynamics.seed)
    print(_description(options.file, structure, simulation, stored))
    if options.restart:
        recorder = _resume(simulation, files, schedule)
    else:
        simulation.start(minimize=options.minimize, velocities=structure.velocities if stored else None)
        recorder = Recorder.begin(simulation, files, schedule, {**settings, STORED: stored})
        print(f"velocities: {origin_of_velocities(stored, scaled)}, {simulation.measure().temperature:.0f} K")
    status = _go(simulation, recorder, interrupts)
    title = f"{Path(options.file).name}: {_ensemble(dynamics, stored)}"
    _finish(simulation, recorder, title, complete=status == 0, page=not options.no_page)
    return status


def _starts_with_stored(options: argparse.Namespace, structure: Structure, dynamics: Dynamics) -> bool:
    """Whether the run starts with the velocities in the file. Raises ValueError for options that contradict this."""
    if options.velocities == "file" and structure.velocities is None:
        raise ValueError(f"--velocities file needs velocities in the file, got {options.file!r} without any")
    if structure.velocities is None or options.velocities == "new":
        return False
    if options.minimize and options.velocities is None:
        return False  # they do not belong to the minimized structure
    if dynamics.ensemble == "nve" and options.temperature is not None:
        raise ValueError(
            f"--temperature applies to new velocities, but {options.file!r} has velocities; add --velocities new, "
            "or leave --temperature out"
        )
    return True


def _refuse_start_options(options: argparse.Namespace) -> None:
    if options.overwrite:
        raise ValueError("--restart and --overwrite exclude each other, got both")
    if options.minimize:
        raise ValueError("--minimize applies to the start of a run, got it with --restart")
    if options.velocities:
        raise ValueError("--velocities applies to the start of a run, got it with --restart")


def _resume(simulation: Simulation, files: Files, schedule: Schedule) -> Recorder:
    with naming(files.portable):
        why = simulation.restore(*files.read_checkpoint())
    step, num_steps = simulation.current_step, simulation.dynamics.num_steps
    if why is not None:
        print(f"restored from {files.portable} instead of {files.exact.name}: {why}")
    if step >= num_steps:
        raise ValueError(f"--restart needs more steps than the {step} completed, got {num_steps}")
    print(f"continuing from step {step:,}")
    return Recorder.resume(simulation, files, schedule)


def _go(simulation: Simulation, recorder: Recorder, interrupts: Interrupts) -> int:
    """Integrates to the end or until a signal; returns the exit status. After a failure, saves the last valid state."""
    dynamics = simulation.dynamics
    progress = SimulationProgress(sys.stderr, simulation.current_step, dynamics.num_steps, dynamics.timestep)
    try:
        _integrate(simulation, recorder, progress, interrupts)
        recorder.save_checkpoint()
        progress.update(simulation.current_step, _newest(simulation, recorder), last=True)
    except SimulationError as error:
        raise SimulationError(f"{error}{_after_failure(recorder)}") from error
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(
            f"step {simulation.current_step:,}: {error.strerror or error}; when it can be, the same command with "
            f"--restart continues from step {recorder.saved_step or 0:,}"
        ) from error
    finally:
        progress.finish()
        recorder.close()
    if interrupts.received is not None:
        print(
            f"torchmdx: stopped by {interrupts.received.name} at step {simulation.current_step:,} of "
            f"{dynamics.num_steps:,}; the same command with --restart continues from there",
            file=sys.stderr,
        )
    return interrupts.status


def _integrate(
    simulation: Simulation, recorder: Recorder, progress: SimulationProgress, interrupts: Interrupts
) -> None:
    """Integrates in short pieces, for signals and the progress line; their lengths do not affect the trajectory."""
    step, end, piece = simulation.current_step, simulation.dynamics.num_steps, 1
    progress.update(step, recorder.row)
    while step < end and interrupts.received is None:
        target = min(recorder.next_stop(step), step + piece, end)
        started = time.perf_counter()
        simulation.step(target - step)
        seconds = time.perf_counter() - started
        piece = max(1, min(2 * piece, int(SECONDS_A_PIECE * (target - step) / max(seconds, 1e-9))))
        step = target
        recorder.record()
        progress.update(step, recorder.row)


def _newest(simulation: Simulation, recorder: Recorder) -> Row:
    """The values of the current step, which the log may lack."""
    row = recorder.row
    return row if row is not None and row.step == simulation.current_step else simulation.measure()


def _after_failure(recorder: Recorder) -> str:
    if recorder.good is None:
        return ""
    recorder.save_checkpoint(recorder.good)
    return (
        f"\nthe last valid state, of step {recorder.good.step}, was saved to {recorder.files.exact} and "
        f"{recorder.files.portable}; frames and log are in {recorder.files.trajectory} and {recorder.files.log}"
    )


def _finish(simulation: Simulation, recorder: Recorder, title: str, *, complete: bool, page: bool) -> None:
    """Writes the final structure of a complete run, the plot and the page, and prints a summary."""
    files, written = recorder.files, [recorder.files.trajectory, recorder.files.log]
    if complete:
        with naming_writes(files.final):
            write_structure(simulation.structure, files.final, *simulation.geometry(), simulation.velocities())
        written.append(files.final)
    target = None if simulation.dynamics.ensemble == "nve" else simulation.dynamics.temperature
    try:
        with naming_writes(files.plot):
            plot_log(files.log, files.plot, title, target)
        written.append(files.plot)
    except ImportError:
        print("no plot: matplotlib is not installed (pip install matplotlib)", file=sys.stderr)
    structure = simulation.structure
    if page and write_run_page(
        files.page,
        files.trajectory,
        structure.atomic_numbers,
        title=title,
        labels=structure.labels(),
        log=files.log,
        temperature=target,
    ):
        written.append(files.page)
    print(_summary(read_log(files.log), recorder))
    print("wrote " + ", ".join(str(path) for path in [*written, files.exact, files.portable]))


def _summary(log: dict[str, np.ndarray], recorder: Recorder) -> str:
    temperature, speed = log["temperature_K"], log["ns_per_day"]
    speed = speed[np.isfinite(speed)]
    fastest = f", {np.median(speed):.3g} ns/day" if len(speed) else ""
    return (
        f"frames: {recorder.trajectory.num_frames}, log rows: {len(temperature)}; "
        f"mean temperature {temperature.mean():.1f} K{fastest}"
    )


def _ensemble(dynamics: Dynamics, stored: bool) -> str:
    """stored: whether the run starts with velocities of the file."""
    parts = [f"{dynamics.ensemble.upper()}"]
    if dynamics.friction is not None:
        parts.append(f"{dynamics.temperature:g} K")
    elif not stored:
        parts.append(f"from {dynamics.temperature:g} K")
    if dynamics.friction is not None:
        parts.append(f"friction {dynamics.friction:g}/ps")
    if dynamics.pressure is not None:
        parts.append(f"{dynamics.pressure:g} bar {dynamics.barostat}")
    if dynamics.hydrogen_mass is not None:
        parts.append(f"hydrogens of {dynamics.hydrogen_mass:g} amu")
    return ", ".join([*parts, f"{dynamics.timestep:g} fs"])


def _description(file: str, structure: Structure, simulation: Simulation, stored: bool) -> str:
    dynamics = simulation.dynamics
    box = "no box" if structure.cell is None else f"box of {abs(np.linalg.det(structure.cell)):.1f} Å³"
    length = dynamics.num_steps * dynamics.timestep / PICOSECOND
    place = f"{structure.place}, " if structure.place else ""
    fixed = f", {int(structure.fixed.sum())} fixed" if structure.fixed.any() else ""
    lines = [
        f"{file}: {place}{structure.formula}, {structure.num_atoms} atoms{fixed}, {box}, {structure.charge_text}",
        f"{_ensemble(dynamics, stored)}; {dynamics.num_steps:,} steps, {length:g} ps; seed {dynamics.seed}",
        f"OpenMM {openmm.__version__}, {simulation.platform} platform; "
        f"{simulation.force.transport} transport: {simulation.force.why}",
    ]
    if 1 not in structure.atomic_numbers and 6 in structure.atomic_numbers:
        lines.append("note: the structure has carbon but no hydrogen; add hydrogens if the file omits them")
    return "\n".join([*lines, *(f"note: {note}" for note in structure.notes)])
