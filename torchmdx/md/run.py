"""A complete run of `torchmdx md`: from the structure to the output files."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from pathlib import Path

import numpy as np
import openmm

from torchmdx.md.files import Files, require_same, settings_of
from torchmdx.md.log import Row, read_log
from torchmdx.md.plot import plot_log
from torchmdx.md.progress import SimulationProgress
from torchmdx.md.recorder import Recorder
from torchmdx.md.settings import LARGEST_SEED, Dynamics, PotentialSettings, Schedule
from torchmdx.md.simulation import Simulation, SimulationError
from torchmdx.md.structure import Structure, read, write_structure
from torchmdx.runtime.damaged_file import naming
from torchmdx.runtime.interrupt import Interrupts
from torchmdx.units import PICOSECOND
from torchmdx.view.run_page import write_run_page

SECONDS_A_PIECE = 0.2  # longest delay before a signal is handled


def run(options: argparse.Namespace) -> int:
    """Runs the simulation of the command line; returns the exit status. `cli.main` prints the errors raised."""
    dynamics, schedule = Dynamics.from_options(options), Schedule.from_options(options)
    potential_settings = PotentialSettings.from_options(options)
    structure = read(options.file, index=options.index, charge=options.charge, vacuum=options.vacuum)
    if dynamics.ensemble == "npt" and structure.cell is None:
        raise ValueError(f"--ensemble npt needs a periodic structure, got {options.file!r} without a box")
    files = Files(options.output, structure.suffix)
    if options.restart:
        _refuse_start_options(options)
        before = files.read_settings()
        if dynamics.seed is None:
            dynamics = dataclasses.replace(dynamics, seed=before.get("seed"))
        require_same(before, settings_of(structure, dynamics, schedule, potential_settings))
    else:
        if not options.overwrite:
            files.require_new()
        if dynamics.seed is None:
            dynamics = dataclasses.replace(dynamics, seed=int(np.random.default_rng().integers(LARGEST_SEED + 1)))
    assert dynamics.seed is not None
    simulation = Simulation(structure, dynamics, potential_settings, dynamics.seed)
    print(_description(options.file, structure, simulation))
    if options.restart:
        recorder = _resume(simulation, files, schedule)
    else:
        settings = settings_of(structure, dynamics, schedule, potential_settings)
        simulation.start(minimize=options.minimize)
        recorder = Recorder.begin(simulation, files, schedule, settings)
    status = _go(simulation, recorder)
    title = f"{Path(options.file).name}: {_ensemble(dynamics)}"
    _finish(simulation, recorder, title, complete=status == 0, page=not options.no_page)
    return status


def _refuse_start_options(options: argparse.Namespace) -> None:
    if options.overwrite:
        raise ValueError("--restart and --overwrite exclude each other, got both")
    if options.minimize:
        raise ValueError("--minimize applies to the start of a run, got it with --restart")


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


def _go(simulation: Simulation, recorder: Recorder) -> int:
    """Integrates to the end or until a signal; returns the exit status. After a failure, saves the last valid state."""
    dynamics = simulation.dynamics
    progress = SimulationProgress(sys.stderr, simulation.current_step, dynamics.num_steps, dynamics.timestep)
    with Interrupts() as interrupts:
        try:
            _integrate(simulation, recorder, progress, interrupts)
            recorder.save_checkpoint()
            progress.update(simulation.current_step, _newest(simulation, recorder), last=True)
        except SimulationError as error:
            raise SimulationError(f"{error}{_after_failure(recorder)}") from error
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
        write_structure(simulation.structure, files.final, *simulation.geometry())
        written.append(files.final)
    target = None if simulation.dynamics.ensemble == "nve" else simulation.dynamics.temperature
    try:
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


def _ensemble(dynamics: Dynamics) -> str:
    parts = [f"{dynamics.ensemble.upper()}"]
    parts.append(f"from {dynamics.temperature:g} K" if dynamics.friction is None else f"{dynamics.temperature:g} K")
    if dynamics.friction is not None:
        parts.append(f"friction {dynamics.friction:g}/ps")
    if dynamics.pressure is not None:
        parts.append(f"{dynamics.pressure:g} bar {dynamics.barostat}")
    return ", ".join([*parts, f"{dynamics.timestep:g} fs"])


def _description(file: str, structure: Structure, simulation: Simulation) -> str:
    dynamics = simulation.dynamics
    box = "no box" if structure.cell is None else f"box of {abs(np.linalg.det(structure.cell)):.1f} Å³"
    length = dynamics.num_steps * dynamics.timestep / PICOSECOND
    lines = [
        f"{file}: {structure.formula}, {structure.num_atoms} atoms, {box}, charge {structure.charge:g}",
        f"{_ensemble(dynamics)}; {dynamics.num_steps:,} steps, {length:g} ps; seed {dynamics.seed}",
        f"OpenMM {openmm.__version__}, {simulation.platform} platform; "
        f"{simulation.force.transport} transport: {simulation.force.why}",
    ]
    if 1 not in structure.atomic_numbers and 6 in structure.atomic_numbers:
        lines.append("note: the structure has carbon but no hydrogen; add hydrogens if the file omits them")
    return "\n".join(lines)
