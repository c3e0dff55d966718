"""A complete run of `torchmdx md --engine torchmdx`: from the structure to the output files."""

from __future__ import annotations

import argparse
import math
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchmdx.checkpoints.prepare import DTYPES, prepare_potential
from torchmdx.dynamics.dynamics import Dynamics
from torchmdx.dynamics.log import LogRow
from torchmdx.dynamics.loops import MOST_STEPS, default_steps_per_replay
from torchmdx.dynamics.run import stages
from torchmdx.dynamics.run.device_options import features_of, refuse_others, temperatures_of, trajectory_of
from torchmdx.dynamics.run.files import RunFiles
from torchmdx.dynamics.run.motion import origin_of_velocities
from torchmdx.dynamics.run.moving import MovingStructure, read, write_final
from torchmdx.dynamics.run.progress import SimulationProgress
from torchmdx.dynamics.run.recording import Recording
from torchmdx.dynamics.run.settings import RunSettings, refuse_with_restart
from torchmdx.dynamics.trajectory_formats import AtomNames, TrajectoryFormat
from torchmdx.models.digest import origin_of
from torchmdx.models.potential import Potential
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

    Args:
        interrupts: A signal before the first step ends the run there, with a restart file.
    """
    settings = RunSettings.from_options(options)
    refuse_with_restart(options)
    files, trajectory, temperatures = files_of(options, settings)
    with OutputLock(options.output) as lock:
        return _run(options, settings, trajectory, temperatures, files, lock, interrupts)


def files_of(options: argparse.Namespace, settings: RunSettings) -> tuple[RunFiles, TrajectoryFormat, Floats]:
    """The files that a run of these options writes, the format of trajectories, and the temperatures of replicas, K."""
    refuse_others(options)
    trajectory = trajectory_of(options)
    temperatures = temperatures_of(options, settings.temperature)
    return RunFiles(options.output, len(temperatures), trajectory.ending), trajectory, temperatures


def _run(
    options: argparse.Namespace,
    settings: RunSettings,
    trajectory: TrajectoryFormat,
    temperatures: Floats,
    files: RunFiles,
    lock: OutputLock,
    interrupts: Interrupts,
) -> int:
    if not (options.restart or options.overwrite):
        files.require_new()
    moving = read(options, settings.hydrogen_mass)
    stored = stages.starts_with_stored(options, moving.velocities is not None, settings.ensemble)
    velocities = moving.velocities if stored else None
    settings = stages.with_seed(settings, files.read_settings() if options.restart else {})
    stages.warn_of_timestep(moving, settings.timestep)  # `Dynamics` warns of outer steps
    features = features_of(options, settings.pressure)
    try:
        dynamics = _dynamics(moving, settings, temperatures, velocities, features)
        origin = origin_of_velocities(stored, moving.scaled)
        print(_description(options, moving, dynamics, settings, origin))
        names = AtomNames.of_arrays(moving.record.atoms.arrays)
        recording = _recording(options, dynamics, settings, trajectory, names, lock)
    except SpreadError as error:  # of a first evaluation, before there is a recording
        error.args = (f"{error}{files.keep_frame(error)}",)
        raise
    status = _go(recording, dynamics, settings, interrupts)
    _finish(options, recording, moving, complete=status == 0)
    return status


def _dynamics(
    moving: MovingStructure,
    settings: RunSettings,
    temperatures: Floats,
    velocities: Floats | None,
    features: dict[str, Any],
) -> Dynamics:
    count, chosen, schedule = len(temperatures), settings.potential, settings.schedule
    device = choose_device(chosen.device, "--device")
    treatment = (chosen.coulomb_cutoff, chosen.coulomb, chosen.coulomb_accuracy)
    potential = prepare_potential(chosen.potential, DTYPES[chosen.precision], device, *treatment)
    system = moving.system
    fast, further = _fast(settings, device)
    periodic = bool(system.pbc.any())
    for each in (potential, *([] if fast is None else [fast])):
        others = each.prior_doubts(periodic, system.charge)  # which `Dynamics` warns of
        for doubt in each.doubts(system.atomic_numbers.tolist(), system.charge, periodic):
            if doubt not in others:
                warnings.warn(doubt, stacklevel=2)
    small = default_steps_per_replay(count * system.num_atoms) == MOST_STEPS
    common = math.gcd(schedule.save_every, schedule.log_every, features["exchange_every"] or 0)
    return Dynamics(
        potential,
        [system] * count,
        integrator=settings.integrator,
        timestep=settings.timestep,
        temperature=temperatures,
        seed=settings.seed,
        velocities=None if velocities is None else np.tile(velocities, (count, 1)),
        masses=np.tile(moving.masses, count),
        frozen=np.tile(moving.fixed, count),
        **features,
        **further,
        steps_per_replay=next((n for n in DIVISORS if common % n == n % settings.inner == 0), None) if small else None,
        skin=chosen.skin,
        precision=chosen.precision,
        max_force_spread=chosen.max_force_spread,
        uncertainty=chosen.uncertainty,
        max_uncertainty=chosen.max_uncertainty,
    )


def _fast(settings: RunSettings, device: torch.device) -> tuple[Potential | None, dict[str, Any]]:
    """The fast potential, and options of `Dynamics` for it."""
    if (chosen := settings.fast) is None:
        return None, {}
    fast = prepare_potential(chosen.model, DTYPES[settings.potential.precision], device)
    if not isinstance(fast, Potential):
        raise ValueError(f"--fast must be a single potential, got an ensemble in {str(chosen.model)!r}")
    own = dict(inner=chosen.inner, max_force_difference=chosen.max_force_difference, small_steps=chosen.small_steps)
    return fast, {"fast": fast, **own}


def _recording(
    options: argparse.Namespace,
    dynamics: Dynamics,
    settings: RunSettings,
    trajectory: TrajectoryFormat,
    names: AtomNames | None,
    lock: OutputLock,
) -> Recording:
    further: dict[str, Any] = {
        "model (SHA-256)": settings.potential.digests(),
        "seed": int(dynamics.motion.seeds[0]),
        "precision": settings.potential.precision,
        "hydrogen mass in amu": settings.hydrogen_mass,
        "Coulomb cutoff in Å": settings.potential.coulomb_cutoff,
        "Coulomb energy": settings.potential.coulomb,
        "Coulomb accuracy": settings.potential.coulomb_accuracy,
    }
    given: dict[str, Any] = {
        **asdict(settings.schedule),
        "settings": further,
        "trajectory": trajectory,
        "lock": lock,
    }
    if options.restart:
        recording = Recording.resume(dynamics, options.output, **given)
        print(f"continuing from step {dynamics.num_steps:,}")
        return recording
    return Recording.begin(dynamics, options.output, **given, overwrite=options.overwrite, names=names)


def _go(recording: Recording, dynamics: Dynamics, settings: RunSettings, interrupts: Interrupts) -> int:
    """Integrates to the end or until a signal; returns the exit status."""
    step, end = dynamics.num_steps, settings.num_steps
    progress = SimulationProgress(sys.stderr, step, end, settings.timestep)

    def show(step: int, row: LogRow | None) -> None:
        progress.update(step, row, last=step == end)

    with recording:
        stages.require_more_steps(step, end)
        try:
            reached = recording.run(end - step, interrupted=lambda: interrupts.received is not None, progress=show)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise stages.with_remedy(error, recording.saved_step) from error
        finally:
            progress.finish()
    return stages.status_after(interrupts, reached, end)


def _finish(options: argparse.Namespace, recording: Recording, moving: MovingStructure, *, complete: bool) -> None:
    """Writes the final structures of a complete run, and of a single one plot and page; prints a summary."""
    files, dynamics = recording.files, recording.dynamics
    written = [*files.trajectories, *files.logs]
    if complete:
        with naming_writes(files.final()):
            write_final(files.final(), moving, dynamics.snapshot())
        written.append(files.final())
    origin, timestep = origin_of(dynamics.potential), f"{dynamics.motion.timestep:g} fs"
    title = f"{Path(options.file).name}: {options.ensemble.upper()}, {timestep}; {origin}"
    if files.num_structures == 1:
        target = None if options.ensemble == "nve" else float(dynamics.motion.temperatures[0])
        numbers = moving.record.atoms.numbers
        written += stages.draw(files, title, target, numbers, None, page=not options.no_page)
    exchange, exchanged = dynamics.exchange, ""
    if exchange is not None and exchange.attempts.any():
        low, high = np.nanmin(exchange.acceptance), np.nanmax(exchange.acceptance)
        exchanged = f"; {low:.0%} to {high:.0%} of the exchanges were accepted"
    if count := dynamics.num_small_blocks:
        exchanged += f"; {count:,} outer steps were taken with the full potential alone, see --small-steps"
    print(stages.summary(files, recording.outputs.trajectories[0].num_frames, exchanged))
    print(stages.wrote([*written, files.restart]))


def _description(
    options: argparse.Namespace, moving: MovingStructure, dynamics: Dynamics, settings: RunSettings, velocities: str
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
            f"potential {settings.potential}",
            *stages.about_fast(settings),
            f"{dynamics.device.type}: {dynamics.why}",
            f"velocities: {velocities}",
        ]
    )
