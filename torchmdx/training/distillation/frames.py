"""Frames for a fast model: short trajectories of the structures, from cold to hot, labelled by the potential."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from torchmdx.datasets.frames import Frames
from torchmdx.datasets.splits import PARTS, Split, write_split
from torchmdx.datasets.store import Store, StoreWriter
from torchmdx.dynamics.dynamics import Dynamics
from torchmdx.dynamics.integrators import Langevin
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.runtime.files import whole_file
from torchmdx.step.results import NonFiniteError, StepError
from torchmdx.structures.system import System
from torchmdx.training.distillation.settings import SAMPLING, DistillSettings

# Temperatures, relative to that of the dynamics: cold frames show the minima, hot ones stretched and short bonds.
COLDEST, HOTTEST = 0.5, 2.5
LEVELS = 8  # temperatures of many structures with one trajectory each
FRICTION = 20.0  # 1/ps: heats within 0.1 ps
MANY = 20  # at least this many structures: whole ones are held out instead of trajectories
VALIDATION, TEST = 0.05, 0.1  # shares of the trajectories, at least one each
STRAINS = (1.0, 0.985, 1.015)  # of the cells of trajectories that are trained on, for constant pressure
SPACING, EQUILIBRATION = 40, 200  # steps
FEWEST_FRAMES, LEAST_SPACING = 4, 5  # of a trajectory, where evaluations are slow
MOST_FRAMES, MOST_ATOMS = 20_000, 4_000_000  # of all trajectories, chosen without --frames
LARGEST_FORCE = 40.0  # eV/Å: frames with larger forces are left out
BATCH_ATOMS = {"cpu": 2_000, "cuda": 50_000}  # of trajectories that run at once
STORE, SPLIT = "frames.store", "split.json"


@dataclass(frozen=True)
class ShortRun:
    """One trajectory: number of its structure, temperature K, part of the split, seed, factor of the cell."""

    structure: int
    temperature: float
    part: str
    seed: int
    strain: float = 1.0


Run = TypeVar("Run", bound=ShortRun)


@dataclass(frozen=True)
class FramePlan:
    """Steps before the first frame and between frames, and frames of each trajectory."""

    equilibration: int
    spacing: int
    frames: int

    @property
    def num_steps(self) -> int:
        return self.equilibration + self.spacing * self.frames


def trajectories(systems: Sequence[System], request: DistillSettings) -> list[ShortRun]:
    """All trajectories. With many structures, validation and test have others than the training; else trajectories."""
    low, high = COLDEST * request.temperature, HOTTEST * request.temperature
    count = len(systems)
    random = np.random.default_rng([request.seed, 1])
    seeds = iter(random.integers(0, 2**62, 10_000 + 100 * count).tolist())
    if count >= MANY:
        parts = _parts_of_structures(systems, random)
        each = request.trajectories or 1
        levels = np.geomspace(low, high, max(LEVELS, each))
        order = random.permutation(count)
        return [
            _trajectory(systems, int(s), float(levels[(k * each + j) % len(levels)]), parts[s], next(seeds), j)
            for k, s in enumerate(order)
            for j in range(each)
        ]
    each = request.trajectories or max(2, LEVELS // count)
    held = max(1, round(each * TEST))
    found = []
    for s in range(count):
        for part, number in (("train", each), ("validation", held), ("test", held)):
            temperatures = np.geomspace(low, high, number) if number > 1 else [request.temperature]
            found += [_trajectory(systems, s, float(t), part, next(seeds), j) for j, t in enumerate(temperatures)]
    return found


def _trajectory(
    systems: Sequence[System], structure: int, temperature: float, part: str, seed: int, number: int
) -> ShortRun:
    strained = part == "train" and bool(systems[structure].pbc.all())
    return ShortRun(structure, temperature, part, seed, STRAINS[number % len(STRAINS)] if strained else 1.0)


def _parts_of_structures(systems: Sequence[System], random: np.random.Generator) -> list[str]:
    """The part of each structure: whole compositions are held out if there are many of them."""
    keys = [tuple(sorted(system.atomic_numbers.tolist())) for system in systems]
    groups = sorted(set(keys))
    place = {key: k for k, key in enumerate(groups)}
    names = list(range(len(systems))) if len(groups) < MANY else [place[key] for key in keys]
    part_of: dict[int, str] = {}
    order = random.permutation(max(names) + 1).tolist()
    for part, share in (("validation", VALIDATION), ("test", TEST)):
        for _ in range(max(1, round(share * (max(names) + 1)))):
            part_of[order.pop()] = part
    return [part_of.get(name, "train") for name in names]


def batches(systems: Sequence[System], planned: Sequence[Run], most_atoms: int) -> list[list[Run]]:
    """Trajectories that run at once: alike in periodic directions, with at most this many atoms or a single one."""
    found: list[list[Run]] = []
    filled = 0
    for one in sorted(planned, key=lambda t: bool(systems[t.structure].pbc.any())):
        system = systems[one.structure]
        alike = found and bool(systems[found[-1][-1].structure].pbc.any()) == bool(system.pbc.any())
        if not alike or filled + system.num_atoms > most_atoms:
            found.append([])
            filled = 0
        found[-1].append(one)
        filled += system.num_atoms
    return found


def schedule(
    request: DistillSettings, seconds_per_step: float, planned: Sequence[ShortRun], num_atoms: int
) -> FramePlan:
    """Frames of each trajectory, for the share of the time, or the number asked for.

    Args:
        seconds_per_step: Of one step of all trajectories.
        num_atoms: Of all of them.
    """
    if request.frames is not None:
        return FramePlan(EQUILIBRATION, SPACING, max(1, math.ceil(request.frames / len(planned))))
    steps = request.seconds(SAMPLING) / seconds_per_step
    equilibration = min(EQUILIBRATION, int(steps / 3))
    spacing = min(SPACING, max(LEAST_SPACING, int((steps - equilibration) / FEWEST_FRAMES)))
    most = min(MOST_FRAMES / len(planned), MOST_ATOMS / num_atoms)
    frames = min((steps - equilibration) / spacing, most)
    return FramePlan(equilibration, spacing, max(2, int(frames)))


def dynamics_of(
    potential: Potential | Ensemble, systems: Sequence[System], batch: Sequence[ShortRun], timestep: float
) -> Dynamics:
    """The dynamics of trajectories that run at once."""
    structures = [_strained(systems[one.structure], one.strain) for one in batch]
    return Dynamics(
        potential,
        structures,
        integrator=Langevin(friction=FRICTION),
        timestep=timestep,
        temperature=[one.temperature for one in batch],
        seed=[one.seed for one in batch],
    )


def _strained(system: System, factor: float) -> System:
    if factor == 1.0:
        return system
    return replace(system, positions=factor * system.positions, cell=factor * system.cell)


def seconds_of_a_step(dynamics: Dynamics, least: float = 1.0) -> float:
    """Of a step of a run, measured for at least this time, s, after steps that compile."""
    dynamics.run(2)
    began, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() - began < least:
        dynamics.run(max(1, count))
        count += max(1, count)
    return (time.perf_counter() - began) / count


def sample(
    dynamics: Dynamics, plan: FramePlan, path: Path, interrupted: Callable[[], bool], note: Callable[[int], None]
) -> bool:
    """Runs trajectories to their end, or until a signal, and writes their frames; whether they are complete.

    A run that was interrupted continues from where it was. An evaluation that fails ends the trajectories, with a
    warning: the frames before it are kept.

    Args:
        path: The file of frames, .npz; next to it, in case of an interruption, the state to continue from.
        note: Called with the number of frames after each.
    """
    kept, restart = _kept(path), path.with_suffix(".restart.npz")
    if restart.exists():
        dynamics.restore(restart)
    failed = ""
    every = [plan.equilibration + plan.spacing * (k + 1) for k in range(plan.frames)]
    try:
        for stop in every:
            if stop <= dynamics.num_steps and len(kept["energy"]) > every.index(stop):
                continue
            left = stop - dynamics.num_steps
            *_, found = (None, *dynamics.snapshots(left, every=stop, interrupted=interrupted))
            if found is not None and found.step == stop:
                for name in kept:
                    kept[name].append(getattr(found, name).copy())
                note(len(kept["energy"]))
            if interrupted():
                break
    except (StepError, NonFiniteError) as error:
        failed = str(error)
        hot = dynamics.motion.temperatures.max()
        warnings.warn(
            f"trajectories at up to {hot:.0f} K ended after {len(kept['energy'])} of {plan.frames} frames: {error}",
            stacklevel=2,
        )
    complete = bool(failed) or len(kept["energy"]) == plan.frames
    with whole_file(path) as file:
        arrays: dict[str, Any] = {name: np.array(values) for name, values in kept.items()}
        np.savez(file, complete=complete, **arrays)
    if complete:
        restart.unlink(missing_ok=True)
    else:
        dynamics.snapshot().save(restart)
    return complete


def _kept(path: Path) -> dict[str, list[Any]]:
    """Frames of an earlier run."""
    names = ("positions", "forces", "energy", "cell")
    if not path.exists():
        return {name: [] for name in names}
    with np.load(path, allow_pickle=False) as held:
        return {name: list(held[name]) for name in names}


def is_complete(path: Path) -> bool:
    """Whether a file holds all frames of its trajectories."""
    if not path.exists():
        return False
    with np.load(path, allow_pickle=False) as held:
        return bool(held["complete"])


def write_store(
    folder: Path, systems: Sequence[System], names: Sequence[str], runs: Sequence[tuple[Path, Sequence[ShortRun]]]
) -> tuple[Store, Split, int]:
    """The store of all frames, with its split recorded next to it, and the number of frames that were left out.

    Raises:
        ValueError: If a part has no frame.
    """
    parts: dict[str, list[int]] = {name: [] for name in PARTS}
    left_out = number = 0
    with StoreWriter(folder / STORE, overwrite=True) as writer:
        for path, batch in runs:
            kept = {name: np.array(values) for name, values in _kept(path).items()}
            if not len(kept["energy"]):
                continue
            starts = np.cumsum([0, *(systems[one.structure].num_atoms for one in batch)])
            for j, one in enumerate(batch):
                atoms = slice(starts[j], starts[j + 1])
                own = {name: kept[name][:, atoms] for name in ("positions", "forces")}
                frames, good = _frames(systems[one.structure], own, kept["energy"][:, j], kept["cell"][:, j])
                left_out += int((~good).sum())
                if good.any():
                    source = f"{names[one.structure]} at {one.temperature:.0f} K, trajectory {number + 1}"
                    parts[one.part] += range(writer.num_frames, writer.num_frames + int(good.sum()))
                    writer.add(frames.take(np.flatnonzero(good)), source, np.flatnonzero(good))
                number += 1
        empty = [name for name in PARTS if not parts[name]]
        if empty:
            raise ValueError(
                f"trajectories must give frames to train, validation and test, got none for {', '.join(empty)}; "
                f"{left_out} had forces above {LARGEST_FORCE:g} eV/Å: are the structures sound?"
            )
    store, split = Store.open(folder / STORE), {name: np.array(parts[name], np.int64) for name in PARTS}
    write_split(folder / SPLIT, split, store)
    return store, split, left_out


def _frames(
    system: System, kept: dict[str, np.ndarray], energy: np.ndarray, cell: np.ndarray
) -> tuple[Frames, np.ndarray]:
    """Frames of one trajectory, and which of them are good [K]."""
    count, atoms = kept["positions"].shape[:2]
    largest = np.linalg.norm(kept["forces"], axis=-1).max(-1)
    good: np.ndarray = np.isfinite(energy) & (largest <= LARGEST_FORCE)
    frames = Frames(
        counts=np.full(count, atoms, np.int64),
        positions=kept["positions"].reshape(-1, 3),
        atomic_numbers=np.tile(system.atomic_numbers.cpu().numpy(), count).astype(np.int64),
        cell=cell.astype(np.float64),
        pbc=np.tile(system.pbc.cpu().numpy(), (count, 1)),
        charge=np.full(count, float(system.charge)),
        energy=energy.astype(np.float64),
        forces=kept["forces"].reshape(-1, 3).astype(np.float32),
        stress=np.full((count, 3, 3), np.nan, np.float32),
    )
    return frames, good
