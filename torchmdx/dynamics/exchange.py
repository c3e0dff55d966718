"""Replica exchange: neighbours on a ladder of temperatures swap them with Metropolis' probability."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchmdx.dynamics.motion import Motion
from torchmdx.dynamics.random_numbers import EXCHANGE, HALF, LOW, log_uniform, philox
from torchmdx.dynamics.snapshot import Snapshot
from torchmdx.structures.system import Batch
from torchmdx.structures.units import BOLTZMANN

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class TemperatureExchange:
    """Attempts to swap temperatures of replicas of one structure at regular intervals.

    Two replicas with energies U, restraints included, and temperatures T swap with probability
    min(1, exp((1/kT₁ - 1/kT₂) (U₁ - U₂))), and their velocities are scaled to the new temperature. Attempts are made
    between neighbours on the ladder, alternating between pairs that start at the lowest and at the second lowest
    temperature. Everything is a function of seed, step and state, so that a restart repeats it.

    Attributes:
        attempts, accepted ([S-1]): Counts between each temperature of the ladder and the next since the start or
            restart.
    """

    def __init__(self, every: int, batch: Batch, temperatures: Floats, seed: int) -> None:
        """Raises ValueError for less than two replicas, different structures, and intervals below 1."""
        if every < 1:
            raise ValueError(f"exchange_every must be >= 1 step, got {every}")
        if batch.num_systems < 2:
            raise ValueError(f"an exchange needs at least 2 replicas, got {batch.num_systems}")
        first, *others = batch.systems()
        for number, system in enumerate(others, 1):
            same = system.num_atoms == first.num_atoms and system.charge == first.charge
            same = same and bool((system.atomic_numbers == first.atomic_numbers).all())
            if not (same and bool((system.cell == first.cell).all() & (system.pbc == first.pbc).all())):
                raise ValueError(
                    f"an exchange needs replicas of one structure, but structure {number} differs from structure 0 in "
                    "elements, charge or cell"
                )
        self.every, self.seed = every, seed
        self.attempts = np.zeros(len(temperatures) - 1, dtype=np.int64)
        self.accepted = np.zeros_like(self.attempts)

    @property
    def acceptance(self) -> Floats:
        """The part of attempts that were accepted between each temperature and the next [S-1]; NaN without attempts."""
        return np.where(self.attempts > 0, self.accepted / np.maximum(self.attempts, 1), np.nan)

    def attempt(self, snapshot: Snapshot) -> tuple[Floats, Floats]:
        """Temperatures [S] and velocities [N,3] after the attempts at the step of a snapshot."""
        energies = snapshot.energy + snapshot.restraint_energy
        temperatures = self.decide(snapshot.step, energies, snapshot.temperatures)
        scale = np.sqrt(temperatures / snapshot.temperatures)
        return temperatures, snapshot.velocities * scale[snapshot.particles.system, None]

    def decide(self, step: int, energies: Floats, before: Floats) -> Floats:
        """Temperatures [S] after the attempts at a step, of replicas with these energies eV and temperatures."""
        temperatures = before.copy()
        ladder = np.argsort(temperatures, kind="stable")
        first = np.arange(step // self.every % 2, len(ladder) - 1, 2)
        cold, hot = ladder[first], ladder[first + 1]
        inverse = 1 / (BOLTZMANN * temperatures)
        exponent = (inverse[cold] - inverse[hot]) * (energies[cold] - energies[hot])
        swapped = self._logarithms(first, step) < exponent
        self.attempts[first] += 1
        self.accepted[first] += swapped
        cold, hot = cold[swapped], hot[swapped]
        temperatures[cold], temperatures[hot] = before[hot], before[cold]
        return temperatures

    def _logarithms(self, places: Integers, step: int) -> Floats:
        """The logarithm of a random number between 0 and 1 for each place on the ladder."""
        place = places.astype(np.uint64)
        seed, at, purpose = (np.full_like(place, value) for value in (self.seed, step, EXCHANGE))
        counter = (place, at & LOW, at >> HALF, purpose)
        return log_uniform(philox(counter, (seed & LOW, seed >> HALF))[0])


def exchange_of(every: int | None, batch: Batch, motion: Motion) -> TemperatureExchange | None:
    """The exchange of a run, None without an interval. Raises ValueError."""
    if every is None:
        return None
    if motion.integrator.constant_energy:
        raise ValueError(f"an exchange needs an integrator with constant temperature, got {motion.integrator!r}")
    return TemperatureExchange(every, batch, motion.temperatures, int(motion.seeds[0]))
