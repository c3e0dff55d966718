"""A stand-in for the captured step: each atom is bound to the origin by a spring, so that averages are known."""

from types import SimpleNamespace

import numpy as np
import torch

from torchmdx import Batch, System
from torchmdx.dynamics.host_loop import HostLoop
from torchmdx.dynamics.motion import Motion
from torchmdx.dynamics.multiple_steps import MultipleSteps
from torchmdx.dynamics.particles import Particles
from torchmdx.step.results import NonFiniteError
from torchmdx.structures.units import BOLTZMANN, FORCE_TO_ACCELERATION

STIFFNESS = 2.0  # eV/Å²
MASS = 4.0  # amu
FREQUENCY = np.sqrt(STIFFNESS / MASS * FORCE_TO_ACCELERATION)  # 1/fs
TEMPERATURE = 300.0  # K
THERMAL = BOLTZMANN * TEMPERATURE  # eV
LONG = 0.9 / FREQUENCY  # fs: a timestep at which errors of other schemes are visible


class Springs:
    """Energies and forces of a batch, called as a captured step."""

    def __init__(self, batch: Batch, stiffness: float = STIFFNESS) -> None:
        n, s = batch.num_atoms, batch.num_systems
        self.system, self.stiffness, self.num_systems = batch.system_index.numpy(), stiffness, s
        self.buffers = SimpleNamespace(
            order=torch.arange(n),
            images=torch.zeros(n, 3),
            origin=torch.zeros(s, 3),
            far=torch.zeros(()),
            doubts=None,
        )
        self.num_evaluations = 0

    def __call__(self, positions, cell=None, *, copy=True):
        if not np.isfinite(positions).all():
            raise NonFiniteError("positions are not finite")
        each = 0.5 * self.stiffness * (positions**2).sum(-1)
        energy = np.bincount(self.system, each, self.num_systems)
        return SimpleNamespace(energy=energy, forces=-self.stiffness * positions)


def atoms_alone(sizes) -> Batch:
    """Structures of so many atoms each, all at the origin."""
    return Batch.from_systems([System.create(np.zeros((size, 3)), np.full(size, 6)) for size in sizes])


def springs(
    integrator, timestep, sizes, *, temperature=300.0, stiffness=STIFFNESS, seed=0, frozen=None, fast=None, inner=1
) -> HostLoop:
    """A loop over structures of these sizes, with positions and velocities of their equilibrium.

    fast: the stiffness of a fast potential, for multiple time steps.
    """
    batch = atoms_alone(sizes)
    fixed = np.zeros(batch.num_atoms, dtype=bool) if frozen is None else frozen
    masses = np.full(batch.num_atoms, MASS)
    particles = Particles.of(batch, masses, fixed, momentum_kept=integrator.keeps_momentum)
    temperatures, seeds = np.full(len(sizes), temperature), seed + np.arange(len(sizes))
    multiple = None if fast is None else MultipleSteps(inner, 1e9)
    motion = Motion(integrator, timestep, particles, temperatures, seeds, multiple_steps=multiple)
    velocities = particles.draw_velocities(temperatures, seeds)
    positions = np.random.default_rng(0).normal(size=velocities.shape)
    positions *= np.sqrt(motion.thermal()[0] / FORCE_TO_ACCELERATION / stiffness) if stiffness else 0.0
    quick = None if fast is None else Springs(batch, fast)
    return HostLoop(Springs(batch, stiffness), motion, positions, velocities, batch.cell.numpy(), quick)


def last(loop, num_steps):
    """The snapshot after so many more steps."""
    return next(loop.snapshots(iter([loop.num_steps + num_steps])))


def require_variance(values, expected, deviations=4.5):
    """That independent normal numbers of mean 0 have this variance, within standard deviations of its estimate."""
    found, error = np.mean(values**2), expected * np.sqrt(2 / values.size)
    assert abs(found - expected) < deviations * error, (found / expected, error / expected)
