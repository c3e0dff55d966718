"""Runs of one setting of multiple time steps: averages of each replica, or the drift at constant energy.

Every run has an end in wall time instead of a length. Used by `benchmarks.multiple_steps_physics`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import observables
from torchmdx import CapturedStep, Dynamics, Potential, System
from torchmdx.dynamics.barostat import CellRescaling
from torchmdx.dynamics.integrators import Langevin
from torchmdx.dynamics.multiple_steps import MultipleSteps
from torchmdx.dynamics.snapshot import Snapshot, kick_forces
from torchmdx.structures.units import BOLTZMANN, FORCE_TO_ACCELERATION

Floats = NDArray[np.float64]

TEMPERATURE, FRICTION = 300.0, 1.0  # K, 1/ps
EQUILIBRATION, RELAXATION = 1500.0, 2000.0  # fs before the first frame, and at constant pressure
SPACING = 30.0  # fs, least between frames
FEWEST, MOST = 20, 4000  # frames
PAIR_EVERY, CURVATURE_EVERY = 8, 10  # frames
PROBES, DISPLACEMENT = 4, 2e-3  # of the Laplacian: random directions, Å
PHI, PSI = (4, 6, 8, 14), (6, 8, 14, 16)  # of alanine dipeptide
BONDS = dict(low=0.7, high=1.7, bins=200)
PAIRS, LONGEST = 140, 7.0  # bins, Å
LAGS = (0.5, 2.0)  # ps, of the slope of squared displacements
NO_LIMIT = 1e6  # eV/Å: resonance is to be seen, not stopped
DENSITY = 1.66053907  # g/cm³ of 1 amu/Å³
PRESSED: dict[str, Any] = dict(barostat=CellRescaling(1.0, relaxation=0.5))


@dataclass(frozen=True)
class Setting:
    """What is run: "nvt", "npt" or "nve", mass of hydrogens in amu (None: of the element), step fs, inner steps.

    inner 1 stands for single steps of the potential alone.
    """

    kind: str
    hydrogen_mass: float | None
    timestep: float
    inner: int

    @property
    def outer(self) -> float:
        """fs."""
        return self.timestep * self.inner

    @property
    def name(self) -> str:
        mass = "normal" if self.hydrogen_mass is None else f"{self.hydrogen_mass:g}amu"
        return f"{self.kind}-{mass}-{self.timestep:g}x{self.inner}"


@dataclass
class Subject:
    """A structure in many replicas [R] at equilibrium, and the two potentials."""

    name: str
    numbers: NDArray[np.int64]
    frames: Floats  # [R,N,3]
    cell: Floats | None  # [3,3], or [R,3,3]
    potential: Potential
    fast: Potential | None
    settled_ps: float = 0.0  # after the start
    seed: int = 1
    _step: CapturedStep | None = field(default=None, repr=False)

    @property
    def systems(self) -> list[System]:
        if self.cell is None:
            return [System.create(frame, self.numbers) for frame in self.frames]
        cells = np.broadcast_to(self.cell, (len(self.frames), 3, 3))
        return [System.create(frame, self.numbers, cell, True) for frame, cell in zip(self.frames, cells, strict=True)]

    def evaluate(self, positions: Floats) -> Floats:
        """Forces [R,N,3] of the potential."""
        if self._step is None:
            self._step = CapturedStep(self.potential, self.systems)
        found = self._step(positions.reshape(-1, 3)).forces
        return np.asarray(torch.as_tensor(found).cpu(), np.float64).reshape(positions.shape)

    def dynamics(self, setting: Setting, integrator: Any, **further: Any) -> Dynamics:
        multiple: dict[str, Any] = {}
        if setting.inner > 1:
            multiple = dict(fast=self.fast, inner=setting.inner, max_force_difference=NO_LIMIT)
        return Dynamics(
            self.potential, self.systems, integrator=integrator, timestep=setting.timestep, temperature=TEMPERATURE,
            seed=self.seed, hydrogen_mass=setting.hydrogen_mass, steps_per_replay=_graph(setting), **multiple,
            **further,
        )  # fmt: skip


def _graph(setting: Setting) -> int:
    """Steps of a graph: about 12, whole outer steps."""
    return setting.inner * max(1, round(12 / setting.inner))


def _every(setting: Setting, least: float) -> int:
    """Steps between frames, of at least this many fs, in whole graphs."""
    graph = _graph(setting)
    return graph * int(np.ceil(least / (graph * setting.timestep) - 1e-9))


class _Sums:
    """What is collected of the frames of a run at constant temperature."""

    def __init__(self, subject: Subject, limits: Floats) -> None:
        self.subject, self.shape = subject, subject.frames.shape
        self.hydrogen = subject.numbers == 1
        self.limits = limits.reshape(self.shape[:2])
        self.values: dict[str, list[Floats]] = {
            name: [] for name in ("energy", "temperature", "temperature_h", "volume", "squares", "squares_h")
        }
        self.positions: list[Floats] = []
        self.largest = self.over = 0.0

    def add(self, found: Snapshot) -> None:
        replicas, number, _ = self.shape
        forces = found.forces.reshape(self.shape)
        kicked = found.particles.kicked(
            found.velocities, found.kick, kick_forces(found.forces, found.fast_forces, found.inner)
        )
        kinetic = found.particles.masses * (kicked**2).sum(-1) / FORCE_TO_ACCELERATION
        of_hydrogens = kinetic.reshape(replicas, number)[:, self.hydrogen].mean(1) / 3 / BOLTZMANN
        squares = (forces**2).sum(-1)
        taken = (found.energy / number, found.temperature, of_hydrogens, found.volume)
        taken = (*taken, squares.sum(1), squares[:, self.hydrogen].sum(1))
        for values, value in zip(self.values.values(), taken, strict=True):
            values.append(np.array(value))
        self.positions.append(found.positions.reshape(self.shape).astype(np.float32))
        if found.fast_forces is not None:
            different = np.linalg.norm(forces - found.fast_forces.reshape(self.shape), axis=-1)
            self.largest = max(self.largest, float(different.max()))
            self.over += float((different > self.limits).any(1).mean())

    def laplacian(self, frame: Floats, random: np.random.Generator) -> tuple[Floats, Floats]:
        """Σ ∂²U/∂x² [R] of all atoms and of hydrogens, eV/Å², by differences of forces along random directions."""
        whole, hydrogens = np.zeros(len(frame)), np.zeros(len(frame))
        for _ in range(PROBES):
            probe = random.choice([-1.0, 1.0], frame.shape)
            ahead, behind = (self.subject.evaluate(frame + sign * DISPLACEMENT * probe) for sign in (1, -1))
            each = (probe * (behind - ahead)).sum(-1) / (2 * DISPLACEMENT)
            whole += each.sum(1) / PROBES
            hydrogens += each[:, self.hydrogen].sum(1) / PROBES
        return whole, hydrogens

    def averages(self, spacing: float) -> dict[str, Floats]:
        """Arrays of each replica [R,...]; spacing: fs between frames."""
        frames = np.array(self.positions)
        found = {name: np.mean(values, 0) for name, values in self.values.items()}
        found["energy_time"] = np.array(observables.correlation_time(np.array(self.values["energy"]), spacing / 1000))
        random = np.random.default_rng(self.subject.seed)
        every = max(CURVATURE_EVERY, len(frames) // 30)
        curved = [self.laplacian(frame.astype(np.float64), random) for frame in frames[::every]]
        found["laplacian"], found["laplacian_h"] = np.mean(curved, 0)
        for name, pairs in observables.bonds_of(self.subject.numbers, self.subject.frames[0]).items():
            values = observables.lengths(frames, pairs)
            # Around a mean of all replicas, because that of a short run follows slow fluctuations.
            # Bonds of a liquid are alike.
            around = values - (values.mean((0, 1)) if self.subject.cell is None else values.mean())
            found[f"mean {name}"], found[f"variance {name}"] = values.mean((0, 2)), (around**2).mean((0, 2))
            found[f"counts {name}"] = observables.histogram(values, **BONDS)
        if self.subject.cell is None:
            angles = [observables.torsion(frames, atoms) for atoms in (PHI, PSI)]
            psi = np.cos(np.radians(angles[1]))
            found["psi_time"] = np.array(observables.correlation_time(psi, spacing / 1000))
            place = [np.clip((angle + 180) // 30, 0, 11) for angle in angles]
            found["counts phi-psi"] = observables.histogram(12 * place[0] + place[1], 0, 144, 144)
        else:
            oxygens = frames[:, :, self.subject.numbers == 8].astype(np.float64)
            edge = float(self.subject.cell[0, 0])
            found["counts pairs"] = observables.pair_counts(oxygens[::PAIR_EVERY], edge, PAIRS, LONGEST)
            found["diffusion"] = observables.diffusion(oxygens, spacing / 1000, *LAGS)
        return found


def constant_temperature(subject: Subject, setting: Setting, until: float, shorter: float = 1.0) -> dict[str, Any]:
    """Averages of each replica of a run until this time of `time.perf_counter`, at constant pressure too."""
    dynamics = subject.dynamics(setting, Langevin(FRICTION), **(PRESSED if setting.kind == "npt" else {}))
    every = _every(setting, SPACING)
    sums = _Sums(subject, MultipleSteps(setting.inner).limits(dynamics.motion))
    first = shorter * (EQUILIBRATION if setting.kind == "nvt" else RELAXATION)
    while len(sums.positions) < max(2, FEWEST * shorter) or time.perf_counter() < until:
        for found in dynamics.snapshots(10 * every, every=every):
            _require_sound(found)
            if found.time >= first:
                sums.add(found)
        if len(sums.positions) >= MOST:
            break
    spacing = every * setting.timestep
    result: dict[str, Any] = dict(frames=len(sums.positions), picoseconds=len(sums.positions) * spacing / 1000)
    result |= dict(largest_difference=sums.largest, over_limit=sums.over / max(1, len(sums.positions)))
    if setting.kind == "npt":
        mass = float(dynamics.motion.particles.masses.sum()) / len(subject.frames)
        return result | dict(density=DENSITY * mass / np.mean(sums.values["volume"], 0))
    return result | sums.averages(spacing)


def constant_energy(subject: Subject, setting: Setting, until: float) -> dict[str, Any]:
    """Total energies [K,R] eV per atom at times [K] ps, of at least 40 frames."""
    dynamics = subject.dynamics(setting, "verlet")
    every = setting.inner * max(1, round(12 / setting.outer))
    times, energies = [], []
    while len(times) < 2 * FEWEST or (time.perf_counter() < until and len(times) < MOST):
        for found in dynamics.snapshots(10 * every, every=every):
            _require_sound(found)
            times.append(found.time / 1000)
            energies.append((found.energy + found.kinetic_energy) / len(subject.numbers))
    return dict(times=np.array(times), energies=np.array(energies), frames=len(times), picoseconds=times[-1])


def _require_sound(found: Snapshot) -> None:
    """Raises FloatingPointError if a run has blown up."""
    hot = float(found.temperature.max())
    if not hot < 3 * TEMPERATURE:
        raise FloatingPointError(f"{hot:.0f} K after {found.time:.0f} fs")


def equilibrated(subject: Subject, stages: list[tuple[float, float]], pressed: bool = False) -> tuple[Floats, Floats]:
    """Positions [R,N,3] and cells [R,3,3] after stages of (temperature K, time ps), of 2 fs with hydrogens of 3 amu."""
    setting = Setting("nvt", 3.0, 2.0, 1)
    dynamics = subject.dynamics(setting, Langevin(5.0), **(PRESSED if pressed else {}))
    graph = _graph(setting)
    for temperature, length in stages:
        dynamics.set_temperature(temperature)
        found = dynamics.run(graph * max(1, round(1000 * length / setting.timestep / graph)))
    return found.positions.reshape(subject.frames.shape), found.cell
