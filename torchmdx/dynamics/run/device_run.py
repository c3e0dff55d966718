"""A complete run of `torchmdx md --engine torchmdx`: from the structure to the output files."""

from __future__ import annotations

import argparse
import math
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchmdx.checkpoints.prepare import DTYPES, prepare_potential
from torchmdx.dynamics.dynamics import Dynamics
from torchmdx.dynamics.loops import MOST_STEPS, default_steps_per_replay
from torchmdx.dynamics.run import stages
from torchmdx.dynamics.run.device_options import features_of, files_of, temperatures_of, trajectory_of
from torchmdx.dynamics.run.motion import origin_of_velocities
from torchmdx.dynamics.run.moving import MovingStructure, read, write_final
from torchmdx.dynamics.run.recording import Recording
from torchmdx.dynamics.run.settings import RunSettings
from torchmdx.dynamics.trajectory_formats import AtomNames, TrajectoryFormat
from torchmdx.models.potential import Potential
from torchmdx.runtime.devices import choose_device
from torchmdx.runtime.interrupt import Interrupts
from torchmdx.runtime.output_lock import OutputLock
from torchmdx.step.results import SpreadError

Floats = NDArray[np.float64]
DIVISORS = range(32, 7, -1)  # steps of a replay that are worth a graph of their own


def run(options: argparse.Namespace, interrupts: Interrupts) -> int:
    """Runs the dynamics of the command line; returns the exit status. `cli.main` prints the errors raised.

    Args:
        interrupts: A signal before the first step ends the run there, with a restart file.
    """
    settings = RunSettings.from_options(options)
    files, trajectory = files_of(options, settings.temperature), trajectory_of(options)
    temperatures = temperatures_of(options, settings.temperature)
    with OutputLock(options.output) as lock:
        if not (options.restart or options.overwrite):
            files.require_new()
        moving = read(options)
        stored = stages.starts_with_stored(options, moving.velocities is not None, settings.ensemble)
        settings = stages.with_seed(settings, files.read_settings() if options.restart else {})
        stages.warn_of_timestep(moving, settings.timestep)  # `Dynamics` warns of outer steps
        features = features_of(options, settings.pressure)
        try:
            dynamics = _dynamics(moving, settings, temperatures, moving.velocities if stored else None, features)
            print(_description(options.file, moving, dynamics, settings, stored))
            recording = _recording(options, dynamics, settings, trajectory, moving, lock)
        except SpreadError as error:  # of a first evaluation, before there is a recording
            error.args = (f"{error}{files.keep_frame(error)}",)
            raise
        status = stages.go(recording, settings, interrupts, restart=options.restart)
        _finish(options, recording, moving, settings, complete=status == 0)
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
    potential = prepare_potential(chosen.potential, DTYPES[chosen.precision], device, **chosen.treatment)
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
        **chosen.doubts,
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
    moving: MovingStructure,
    lock: OutputLock,
) -> Recording:
    own = settings.shared() | {"precision": settings.potential.precision}
    given: dict[str, Any] = asdict(settings.schedule) | dict(settings=own, trajectory=trajectory, lock=lock)
    if options.restart:
        return Recording.resume(dynamics, options.output, **given)
    names = AtomNames.of_arrays(moving.record.atoms.arrays)
    return Recording.begin(dynamics, options.output, **given, overwrite=options.overwrite, names=names)


def _finish(
    options: argparse.Namespace, recording: Recording, moving: MovingStructure, settings: RunSettings, *, complete: bool
) -> None:
    def write(path: Path) -> None:
        write_final(path, moving, dynamics.snapshot())

    dynamics = recording.dynamics
    exchange, further = dynamics.exchange, ""
    if exchange is not None and exchange.attempts.any():
        low, high = np.nanmin(exchange.acceptance), np.nanmax(exchange.acceptance)
        further = f"; {low:.0%} to {high:.0%} of the exchanges were accepted"
    if count := dynamics.num_small_blocks:
        further += f"; {count:,} outer steps were taken with the full potential alone, see --small-steps"
    motion = f"{settings.ensemble.upper()}, {settings.timestep:g} fs"
    stages.finish(options, recording, moving, settings, motion, write if complete else None, further)


def _description(file: str, moving: MovingStructure, dynamics: Dynamics, settings: RunSettings, stored: bool) -> str:
    motion, pbc = dynamics.motion, moving.record.atoms.pbc
    box = f"periodic along {int(pbc.sum())} directions" if pbc.any() else "no box"
    low, high = motion.temperatures.min(), motion.temperatures.max()
    target = f"{low:g} K" if low == high else f"{low:g} to {high:g} K"
    replicas = f", {len(motion.temperatures)} replicas" * (len(motion.temperatures) > 1)
    pressure = "" if motion.barostat is None else f", {motion.barostat.pressure:g} bar"
    heavy = "" if settings.hydrogen_mass is None else f", hydrogens of {settings.hydrogen_mass:g} amu"
    moves = f"{motion.integrator!r}, {target}{pressure}, {settings.timestep:g} fs{heavy}{replicas}"
    return "\n".join(
        [
            *stages.description(file, moving, box, moves, settings),
            f"{dynamics.device.type}: {dynamics.why}",
            f"velocities: {origin_of_velocities(stored, moving.scaled)}",
        ]
    )
