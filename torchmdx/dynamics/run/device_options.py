"""Options of `torchmdx md --engine torchmdx` that have no counterpart in OpenMM."""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.dynamics.barostat import CellRescaling
from torchmdx.dynamics.restraints import read_restraints
from torchmdx.dynamics.run.files import RunFiles
from torchmdx.dynamics.trajectory_formats import TrajectoryFormat
from torchmdx.runtime.devices import choose_device

Floats = NDArray[np.float64]


def features_of(options: argparse.Namespace, pressure: float | None) -> dict[str, Any]:
    """What a run has beyond its integrator, as `Dynamics` takes it. pressure: bar. Raises ValueError, OSError."""
    every = options.exchange_every
    if every is not None and options.temperatures is None:
        raise ValueError(f"--exchange-every needs --temperatures, got {every} without it")
    devices = 1 if options.devices is None else options.devices
    if devices > 1 and options.device not in (None, "cpu", "cuda", "cuda:0"):
        raise ValueError(f"--devices {devices} takes the first GPUs, got --device {options.device}")
    if options.exchange_on_device:
        if every is None:
            raise ValueError("--exchange-on-device needs --exchange-every, got it without")
        if devices > 1 or choose_device(options.device, "--device").type != "cuda":
            found = f"--devices {devices}" if devices > 1 else "a CPU"
            raise ValueError(f"--exchange-on-device needs one GPU, got {found}")
    return dict(
        exchange_every=every,
        exchange_on_device=bool(options.exchange_on_device),
        barostat=None if pressure is None else CellRescaling(pressure),
        restraints=() if options.restraints is None else read_restraints(options.restraints),
        devices=devices,
    )


def files_of(options: argparse.Namespace, temperature: float) -> RunFiles:
    """The files that a run of the options writes, with either engine. temperature: K, where replicas have none."""
    if options.engine == "openmm":
        return RunFiles(options.output, engine=options.engine)
    count, ending = len(temperatures_of(options, temperature)), trajectory_of(options).ending
    return RunFiles(options.output, count, ending)


def trajectory_of(options: argparse.Namespace) -> TrajectoryFormat:
    """The format of trajectories. Raises ValueError for velocities in a DCD, ImportError without h5py."""
    name = options.trajectory or "dcd"
    if options.save_velocities and name != "hdf5":
        raise ValueError(f"--save-velocities needs --trajectory hdf5, got {name}")
    return TrajectoryFormat(name, velocities=bool(options.save_velocities))


def temperatures_of(options: argparse.Namespace, temperature: float) -> Floats:
    """Temperatures of the replicas, K. Raises ValueError for a number below 1 and a range that is none."""
    count = 1 if options.replicas is None else options.replicas
    if count < 1:
        raise ValueError(f"--replicas must be >= 1, got {count}")
    if options.temperatures is None:
        return np.full(count, temperature)
    if options.temperature is not None:
        raise ValueError("--temperature and --temperatures exclude each other, got both")
    try:
        low, high = (float(part) for part in options.temperatures.split(":"))
    except ValueError:
        low = high = math.nan
    if not (math.isfinite(high) and 0 < low <= high):
        raise ValueError(f"--temperatures must be LOW:HIGH in K with 0 < LOW <= HIGH, got {options.temperatures!r}")
    if count < 2:
        raise ValueError(f"--temperatures needs --replicas of at least 2, got {count}")
    return np.geomspace(low, high, count)
