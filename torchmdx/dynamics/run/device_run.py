"""A complete run of `torchmdx md --engine torchmdx`: from the structure to the output files."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import math
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.checkpoints.prepare import DTYPES, prepare_potential
from torchmdx.dynamics.dynamics import MOST_STEPS, Dynamics, default_steps_per_replay
from torchmdx.dynamics.log import Row, read_log
from torchmdx.dynamics.recording import Recording
from torchmdx.dynamics.run.device_options import (
    features_of,
    integrator_of,
    refuse_others,
    temperatures_of,
    trajectory_of,
)
from torchmdx.dynamics.run.motion import origin_of_velocities
from torchmdx.dynamics.run.moving import Moving, read, write_final
from torchmdx.dynamics.run.plot import plot_log
from torchmdx.dynamics.run.progress import SimulationProgress
from torchmdx.dynamics.run.settings import LARGEST_SEED, PotentialSettings, Schedule
from torchmdx.dynamics.run.settings import Dynamics as Settings
from torchmdx.dynamics.run.timestep import doubt_about_timestep
from torchmdx.dynamics.run_files import RunFiles
from torchmdx.dynamics.trajectory_formats import AtomNames, TrajectoryFormat
from torchmdx.report.view.run_page import write_run_page
from torchmdx.runtime.devices import choose_device
from torchmdx.runtime.files import naming_writes
from torchmdx.runtime.interrupt import Interrupts
from torchmdx.runtime.output_lock import OutputLock
from torchmdx.step.results import SpreadError
from torchmdx.structures.units import PICOSECOND

Floats = NDArray[np.float64]
DIVISORS = range(32, 7, -1)  # steps of a replay that are worth a graph of their own


def run(options: argparse.Namespace, interrupts: Interrupts) -> int:
    """Runs the dynamics of the command line; returns the exit status. `cli.main` prints the errors raised.

    interrupts: a signal before the first step ends the run there, with a restart file.
    """
    settings, schedule = Settings.from_options(options), Schedule.from_options(options)
    potential_settings = PotentialSettings.from_options(options)
    refuse_others(options)
    trajectory = trajectory_of(options)
    temperatures = temperatures_of(options, settings.temperature)
    files = RunFiles(options.output, len(temperatures), trajectory.ending)
    with OutputLock(options.output) as lock:
        return _run(options, settings, schedule, potential_settings, trajectory, temperatures, files, lock, interrupts)


def _run(
    options: argparse.Namespace,
    settings: Settings,
    schedule: Schedule,
    potential_settings: PotentialSettings,
    trajectory: TrajectoryFormat,
    temperatures: Floats,
    files: RunFiles,
    lock: OutputLock,
    interrupts: Interrupts,
) -> int:
    if not (options.restart or options.overwrite):
        files.require_new()
    moving = read(options, settings.hydrogen_mass)
    velocities = None if options.velocities == "new" else moving.velocities
    if options.velocities == "file" and velocities is None:
        raise ValueError(f"--velocities file needs velocities in the file, got {options.file!r} without any")
    seed = settings.seed
    if seed is None:
        before = files.read_settings() if options.restart else {}
        seed = int(before.get("seed", np.random.default_rng().integers(LARGEST_SEED + 1)))
    settings = dataclasses.replace(settings, seed=seed)
    if (doubt := doubt_about_timestep(moving, settings.timestep)) is not None:
        warnings.warn(doubt, stacklevel=2)
    features = features_of(options, settings.pressure)
    try:
        dynamics = _dynamics(moving, settings, schedule, potential_settings, temperatures, velocities, features)
        origin = origin_of_velocities(velocities is not None, moving.scaled)
        print(_description(options, moving, dynamics, settings, origin))
        names = AtomNames.of_arrays(moving.record.atoms.arrays)
        recording = _recording(options, dynamics, settings, schedule, potential_settings, trajectory, names, lock)
    except SpreadError as error:  # of a first evaluation, before there is a recording
        error.args = (f"{error}{files.keep_frame(error)}",)
        raise
    status = _go(recording, dynamics, settings, interrupts)
    _finish(options, recording, moving, complete=status == 0)
    return status


def _dynamics(
    moving: Moving,
    settings: Settings,
    schedule: Schedule,
    potential_settings: PotentialSettings,
    temperatures: Floats,
    velocities: Floats | None,
    features: dict[str, Any],
) -> Dynamics:
    count, precision = len(temperatures), potential_settings.precision
    device = choose_device(potential_settings.device, "--device")
    treatment = (potential_settings.coulomb_cutoff, potential_settings.coulomb)
    potential = prepare_potential(potential_settings.potential, DTYPES[precision], device, *treatment)
    system = moving.system
    for doubt in potential.doubts(system.atomic_numbers.tolist(), system.charge, bool(system.pbc.any())):
        warnings.warn(doubt, stacklevel=2)
    small = default_steps_per_replay(count * system.num_atoms) == MOST_STEPS
    common = math.gcd(schedule.save_every, schedule.log_every, features["exchange_every"] or 0)
    return Dynamics(
        potential,
        [system] * count,
        integrator=integrator_of(settings),
        timestep=settings.timestep,
        temperature=temperatures,
        seed=settings.seed,
        velocities=None if velocities is None else np.tile(velocities, (count, 1)),
        masses=np.tile(moving.masses, count),
        frozen=np.tile(moving.fixed, count),
        **features,
        steps_per_replay=next((size for size in DIVISORS if common % size == 0), None) if small else None,
        skin=potential_settings.skin,
        precision=precision,
        max_force_spread=potential_settings.max_force_spread,
    )


def _recording(
    options: argparse.Namespace,
    dynamics: Dynamics,
    chosen: Settings,
    schedule: Schedule,
    potential_settings: PotentialSettings,
    trajectory: TrajectoryFormat,
    names: AtomNames | None,
    lock: OutputLock,
) -> Recording:
    models = [hashlib.sha256(path.read_bytes()).hexdigest() for path in potential_settings.models]
    further: dict[str, Any] = {
        "model (SHA-256)": " ".join(models),
        "seed": int(dynamics.motion.seeds[0]),
        "precision": potential_settings.precision,
        "hydrogen mass in amu": chosen.hydrogen_mass,
        "Coulomb cutoff in Å": potential_settings.coulomb_cutoff,
        "Coulomb energy": potential_settings.coulomb,
    }
    given: dict[str, Any] = {
        **dataclasses.asdict(schedule),
        "settings": further,
        "trajectory": trajectory,
        "lock": lock,
    }
    if options.restart:
        recording = Recording.resume(dynamics, options.output, **given)
        print(f"continuing from step {dynamics.num_steps:,}")
        return recording
    return Recording.begin(dynamics, options.output, **given, overwrite=options.overwrite, names=names)


def _go(recording: Recording, dynamics: Dynamics, settings: Settings, interrupts: Interrupts) -> int:
    """Integrates to the end or until a signal; returns the exit status."""
    step, end = dynamics.num_steps, settings.num_steps
    if step >= end:
        recording.close()
        raise ValueError(f"--restart needs more steps than the {step} completed, got {end}")
    progress = SimulationProgress(sys.stderr, step, end, settings.timestep)

    def show(step: int, row: Row | None) -> None:
        progress.update(step, row, last=step == end)

    with recording:
        try:
            reached = recording.run(end - step, interrupted=lambda: interrupts.received is not None, progress=show)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OSError(
                f"{error.strerror or error}; when it can be, the same command with --restart continues from step "
                f"{recording.saved_step or 0:,}"
            ) from error
        finally:
            progress.finish()
    if interrupts.received is not None:
        print(
            f"torchmdx: stopped by {interrupts.received.name} at step {reached:,} of {end:,}; the same command with "
            "--restart continues from there",
            file=sys.stderr,
        )
    return interrupts.status


def _finish(options: argparse.Namespace, recording: Recording, moving: Moving, *, complete: bool) -> None:
    """Writes the final structures of a complete run, and of a single one plot and page; prints a summary."""
    files, dynamics = recording.files, recording.dynamics
    written = [*files.trajectories, *files.logs]
    if complete:
        with naming_writes(files.final):
            write_final(files.final, moving, dynamics.snapshot())
        written.append(files.final)
    title = f"{Path(options.file).name}: {options.ensemble.upper()}, {dynamics.motion.timestep:g} fs"
    if files.num_structures == 1:
        target = None if options.ensemble == "nve" else float(dynamics.motion.temperatures[0])
        try:
            with naming_writes(files.plot):
                plot_log(files.logs[0], files.plot, title, target)
            written.append(files.plot)
        except ImportError:
            print("no plot: matplotlib is not installed (pip install matplotlib)", file=sys.stderr)
        numbers = moving.record.atoms.numbers
        log = dict(title=title, log=files.logs[0], temperature=target)
        if not options.no_page and write_run_page(files.page, files.trajectories[0], numbers, **log):  # type: ignore[arg-type]
            written.append(files.page)
    print(_summary(recording))
    names = [str(path) for path in [*written, files.restart]]
    shown = names if len(names) <= 8 else [*names[:3], f"... ({len(names) - 5} files)", *names[-2:]]
    print("wrote " + ", ".join(shown))


def _summary(recording: Recording) -> str:
    logs = [read_log(path) for path in recording.files.logs]
    means = [float(log["temperature_K"].mean()) for log in logs]
    speed = logs[0]["ns_per_day"]
    speed = speed[np.isfinite(speed)]
    several = f" of {min(means):.1f} to {max(means):.1f} K in {len(means)} replicas" if len(means) > 1 else ""
    fastest = f", {np.median(speed):.3g} ns/day" if len(speed) else ""
    exchange, exchanged = recording.dynamics.exchange, ""
    if exchange is not None and exchange.attempts.any():
        low, high = np.nanmin(exchange.acceptance), np.nanmax(exchange.acceptance)
        exchanged = f"; {low:.0%} to {high:.0%} of the exchanges were accepted"
    return (
        f"frames: {recording.trajectories[0].num_frames}, log rows: {len(logs[0]['step'])}; mean temperature"
        + (several or f" {means[0]:.1f} K")
        + (fastest + exchanged)
    )


def _description(
    options: argparse.Namespace, moving: Moving, dynamics: Dynamics, settings: Settings, velocities: str
) -> str:
    motion, record, atoms = dynamics.motion, moving.record, moving.record.atoms
    place = f"{record.place}, " if record.place else ""
    fixed = f", {int(moving.fixed.sum())} fixed" if moving.fixed.any() else ""
    box = f"periodic along {int(atoms.pbc.sum())} directions" if atoms.pbc.any() else "no box"
    low, high = motion.temperatures.min(), motion.temperatures.max()
    target = f"{low:g} K" if low == high else f"{low:g} to {high:g} K"
    replicas = f", {len(motion.temperatures)} replicas" * (len(motion.temperatures) > 1)
    pressure = "" if motion.barostat is None else f", {motion.barostat.pressure:g} bar"
    heavy = "" if settings.hydrogen_mass is None else f", hydrogens of {settings.hydrogen_mass:g} amu"
    num_steps = settings.num_steps
    length = num_steps * motion.timestep / PICOSECOND
    return "\n".join(
        [
            f"{options.file}: {place}{atoms.get_chemical_formula()}, {len(atoms)} atoms{fixed}, {box}, "
            f"{record.charge_text}",
            f"{motion.integrator!r}, {target}{pressure}, {motion.timestep:g} fs{heavy}{replicas}; {num_steps:,} steps, "
            f"{length:g} ps; seed {motion.seeds[0]}",
            f"{dynamics.device.type}: {dynamics.why}",
            f"velocities: {velocities}",
        ]
    )
