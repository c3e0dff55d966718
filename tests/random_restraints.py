"""Restraints of all kinds, for batches of two structures of at least 150 and 40 atoms."""

import numpy as np

from torchmdx import Batch, System
from torchmdx.dynamics.particles import Particles
from torchmdx.dynamics.restraints import Angle, Distance, Position, Torsion


def many_restraints(count, rng):
    """Of all kinds, at all differences, between the atoms of structures of 150 and 40 atoms."""
    found = []
    for _ in range(count):
        a, b, c, d = (int(i) for i in rng.permutation(40)[:4])
        both = rng.uniform(-180, 180, 2)
        found += [
            Distance((a, b), rng.uniform(0, 3, 2), 2.0),
            Angle((a, b, c), np.abs(both), [1.0, 3.0]),
            Torsion((a, b, c, d), both, [2.0, 0.0]),
            Position((a, c), 1.5),
        ]
    return [*found, Position(tuple(range(100, 150)), [1.0, 0.0])]


def carbons(sizes) -> Batch:
    """Structures of so many atoms each, all at the origin."""
    return Batch.from_systems([System.create(np.zeros((size, 3)), np.full(size, 6)) for size in sizes])


def particles_of(sizes) -> Particles:
    batch = carbons(sizes)
    return Particles.of(batch, np.ones(batch.num_atoms), np.zeros(batch.num_atoms, dtype=bool), momentum_kept=False)
