"""Stores of molecules held by springs, with labels that are spoiled in known ways."""

from dataclasses import replace

import numpy as np

from torchmdx.datasets.frames import Frames
from torchmdx.datasets.store import Store, StoreWriter

ATOMS = {1: -13.6, 6: -1030.0, 8: -2042.0}  # eV
LENGTH, STIFFNESS = 1.4, 8.0


def springs(positions, links):
    """Energy and forces of harmonic springs."""
    vectors = positions[links[:, 0]] - positions[links[:, 1]]
    lengths = np.linalg.norm(vectors, axis=1)
    pull = (-STIFFNESS * (lengths - LENGTH) / lengths)[:, None] * vectors
    forces = np.zeros_like(positions)
    np.add.at(forces, links[:, 0], pull)
    np.add.at(forces, links[:, 1], -pull)
    return 0.5 * STIFFNESS * ((lengths - LENGTH) ** 2).sum(), forces


def frames(count, seed=0, noise=0.08):
    """Zigzag chains of 6 to 10 atoms with random elements, in no order."""
    generator = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        size = int(generator.integers(6, 11))
        numbers = generator.choice(list(ATOMS), size)
        k = np.arange(size)
        positions = np.stack([1.2 * k, 0.7 * (k % 2), 0.3 * (k % 3)], 1) + generator.normal(0, noise, (size, 3))
        energy, forces = springs(positions, np.stack([k[:-1], k[1:]], 1))
        energy += sum(ATOMS[int(z)] for z in numbers)
        made.append(Frames.single(positions, numbers, energy=energy, forces=forces))
    return made


def store(path, count=60, change=lambda k, frame: frame, **settings):
    """A store of such frames, each changed by change(index, frame)."""
    with StoreWriter(path) as writer:
        for k, frame in enumerate(frames(count, **settings)):
            writer.add(change(k, frame), "made.xyz", k)
    return Store.open(path)


def energies(of, factor=1.0, value=None):
    """A change of the energies of the frames `of`."""
    return lambda k, f: replace(f, energy=f.energy * factor if value is None else f.energy * 0 + value) if of(k) else f


def forces(of, factor):
    """A change of the forces of the frames `of`."""
    return lambda k, f: replace(f, forces=f.forces * np.float32(factor)) if of(k) else f


def both(of, factor):
    return lambda k, f: forces(of, factor)(k, energies(of, factor)(k, f))
