"""An integrator as somebody outside the package writes it: one class, with a step on the host."""

from dataclasses import dataclass

import numpy as np

from torchmdx.dynamics.integrators import Integrator
from torchmdx.structures.units import PICOSECOND


@dataclass(frozen=True)
class Andersen(Integrator):
    """Velocity Verlet, and new velocities of each atom at random times. rate: of these, 1/ps."""

    rate: float = 1.0
    name = "andersen"
    keeps_momentum = False

    def kept(self, timestep):
        return np.exp(-self.rate * timestep / PICOSECOND)

    def on_host(self, motion):
        return AndersenStep(motion)


class AndersenStep:
    def __init__(self, motion):
        self.timestep, self.kicks, self.kept = motion.timestep, motion.kicks(), motion.kept
        particles = motion.particles
        self.spread = np.sqrt(motion.thermal()[particles.system] * particles.inverse_masses())[:, None]
        self.seeds = motion.seeds

    def move(self, number, positions, velocities, forces):
        velocities = velocities + self.kicks * forces
        return positions + self.timestep * velocities, velocities

    def complete(self, number, velocities, forces):
        velocities = velocities + self.kicks * forces
        random = np.random.default_rng([number, *self.seeds])
        hit = random.random(len(velocities)) > self.kept
        return np.where(hit[:, None], self.spread * random.normal(size=velocities.shape), velocities)
