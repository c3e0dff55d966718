"""The settings that a run and its continuation share: those of a `Dynamics`, and how two runs differ."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from torchmdx.dynamics.dynamics import Dynamics
from torchmdx.dynamics.particles import Particles
from torchmdx.dynamics.run.recorded import atoms_of
from torchmdx.dynamics.trajectory_formats import TrajectoryFormat
from torchmdx.models.digest import digest_of

CELLS, CELL = "cells in Å", "cell in Å"  # of several structures, and of one in OpenMM
DECIMALS = 6  # of cells, in Å: files of structures round more than memory does


def settings_of(dynamics: Dynamics, save_every: int, log_every: int, trajectory: TrajectoryFormat) -> dict[str, Any]:
    """By their names in error messages; a list has a value for each structure."""
    motion, batch = dynamics.motion, dynamics.batch
    particles, numbers = motion.particles, batch.atomic_numbers.numpy()
    atoms = numbers.tobytes() + particles.masses.tobytes() + particles.mobile.tobytes()
    restraints, barostat, multiple = motion.restraints, motion.barostat, motion.multiple_steps
    return {
        "potential (SHA-256)": digest_of(dynamics.potential),
        "formulas": [_formula(numbers[own].tolist()) for own in atoms_of(particles)],
        "masses in amu (least and greatest)": _masses(particles),
        "frozen atoms": int((~particles.mobile).sum()),
        "atoms (SHA-256 of elements, masses and which move)": hashlib.sha256(atoms).hexdigest(),
        "atoms of the structures": np.diff(particles.starts).tolist(),
        "charges in e": batch.charge.tolist(),
        CELLS: batch.cell.numpy().round(DECIMALS).tolist(),
        "periodic directions": batch.pbc.tolist(),
        "integrator": repr(motion.integrator),
        "timestep in fs": motion.timestep,
        "temperatures in K": motion.temperatures.tolist(),
        "seeds": motion.seeds.tolist(),
        "barostat": None if barostat is None else repr(barostat),
        "restraints (SHA-256)": None if restraints is None else restraints.digest(),
        "steps between exchanges": None if dynamics.exchange is None else dynamics.exchange.every,
        "steps between frames": save_every,
        "steps between log rows": log_every,
        "trajectories": trajectory.name + " with velocities" * trajectory.velocities,
        "fast potential (SHA-256)": None if dynamics.fast is None else digest_of(dynamics.fast),
        "multiple time steps": None if multiple is None else repr(multiple),
    }


# Names that earlier versions did not write, of either engine.
ADDED = {
    "potential (SHA-256)", "formulas", "masses in amu (least and greatest)", "frozen atoms", CELLS, CELL,
    "periodic directions", "temperatures in K",
}  # fmt: skip


def differences(now: dict[str, Any], before: dict[str, Any]) -> tuple[list[str], list[str]]:
    """What differs between two runs, with both values; of lists the first structure. Missing values count as None.

    The second list holds names of `ADDED` that `before` lacks, which are not compared.
    """
    names = [*now, *(name for name in before if name not in now)]
    missing = [name for name in now if name in ADDED and name not in before]
    found = [
        _difference(name, now.get(name), before.get(name))
        for name in names
        if name not in missing and now.get(name) != before.get(name)
    ]
    return found, missing


def _difference(name: str, now: Any, before: Any) -> str:
    if name != CELL and isinstance(now, list) and isinstance(before, list) and len(now) == len(before) > 0:
        place = next(place for place, pair in enumerate(zip(now, before, strict=True)) if pair[0] != pair[1])
        where = f" of structure {place}" if len(now) > 1 else ""
        return f"{name}{where} {now[place]}, was {before[place]}"
    return f"{name} {now}, was {before}"


def _formula(numbers: list[int]) -> str:
    from ase.symbols import Symbols

    return str(Symbols(numbers).get_chemical_formula())


def _masses(particles: Particles) -> str:
    if not len(particles.masses):
        return "none"
    return f"{particles.masses.min():.6g} to {particles.masses.max():.6g}"
