"""Stand-ins for the captured step whose volumes have known distributions: gases whose energy depends on the cell."""

from types import SimpleNamespace

import numpy as np
import torch
from oscillators import MASS

from torchmdx import Batch, System
from torchmdx.dynamics.barostat import volumes
from torchmdx.dynamics.host_loop import HostLoop
from torchmdx.dynamics.motion import Motion
from torchmdx.dynamics.particles import Particles
from torchmdx.structures.units import BAR, BOLTZMANN

PRESSURE, TEMPERATURE = 1000.0, 300.0  # bar, K
THERMAL = BOLTZMANN * TEMPERATURE
FREE = THERMAL / (PRESSURE * BAR)  # Å³ for each atom of an ideal gas


class Gas:
    """Called as a captured step: U = B/2 (V - V₀)² / V₀ of each structure, no forces. bulk: B, eV/Å³; rest: V₀, Å³."""

    def __init__(self, batch: Batch, bulk: float, rest: float) -> None:
        n, s = batch.num_atoms, batch.num_systems
        self.bulk, self.rest, self.cell = bulk, rest, None
        self.buffers = SimpleNamespace(
            order=torch.arange(n),
            images=torch.zeros(n, 3),
            origin=torch.zeros(s, 3),
            far=torch.zeros(()),
            doubts=None,
        )
        self.num_evaluations = 0

    def __call__(self, positions, cell=None, *, copy=True):
        self.cell = cell = self.cell if cell is None else cell
        strain = volumes(cell) - self.rest
        slope = self.bulk * strain / self.rest
        return SimpleNamespace(
            energy=0.5 * self.bulk * strain**2 / self.rest,
            forces=np.zeros_like(positions),
            stress=slope[:, None, None] * np.eye(3),
        )


def gas(integrator, barostat, timestep, sizes, *, bulk=0.0, rest=1.0, volume=None, seed=0) -> HostLoop:
    """A loop over boxes of gas of these numbers of atoms. volume: Å³ at the beginning; None: that of an ideal gas."""
    volume = FREE * np.array(sizes) if volume is None else np.full(len(sizes), volume)
    lean = np.array([[1.0, 0, 0], [0.2, 1, 0], [0, 0.3, 1]])  # of volume 1
    cell = volume[:, None, None] ** (1 / 3) * lean
    random = np.random.default_rng(7)
    boxes = [
        System.create(random.random((size, 3)) @ one, np.full(size, 18), cell=one, pbc=True)
        for size, one in zip(sizes, cell, strict=True)
    ]
    batch = Batch.from_systems(boxes)
    still = np.zeros(batch.num_atoms, dtype=bool)
    masses = np.full(batch.num_atoms, MASS)
    particles = Particles.of(batch, masses, still, momentum_kept=integrator.keeps_momentum)
    temperatures, seeds = np.full(len(sizes), TEMPERATURE), seed + np.arange(len(sizes))
    motion = Motion(integrator, timestep, particles, temperatures, seeds, None, barostat)
    velocities = particles.draw_velocities(temperatures, seeds)
    return HostLoop(Gas(batch, bulk, rest), motion, batch.positions.numpy(), velocities, cell)
