"""Stores and configurations of molecules with analytic energies and forces."""

from dataclasses import replace

import numpy as np
import yaml

from torchmdx.datasets.frames import Frames
from torchmdx.datasets.store import Store, StoreWriter

LONE = {1: -13.6, 6: -1030.0, 8: -2040.0}


def morse(positions, numbers):
    """Energy and forces: Σ over pairs of D (1 - exp(-a (r - r0)))² times a switch to 0 at 4 Å, plus references."""
    delta = positions[:, None] - positions[None]
    distance = np.linalg.norm(delta, axis=-1)
    i, j = np.triu_indices(len(numbers), 1)
    r = distance[i, j]
    depth = 0.2 + 0.02 * (numbers[i] + numbers[j])
    x = np.exp(-1.5 * (r - 1.5))
    u, du = depth * (x * x - 2 * x), depth * 1.5 * (2 * x - 2 * x * x)
    s = np.where(r < 4, 0.5 * (np.cos(np.pi * r / 4) + 1), 0.0)
    ds = np.where(r < 4, -0.5 * np.pi / 4 * np.sin(np.pi * r / 4), 0.0)
    slope = du * s + u * ds
    pull = -(slope / r)[:, None] * delta[i, j]
    forces = np.zeros_like(positions)
    np.add.at(forces, i, pull)
    np.add.at(forces, j, -pull)
    return float((u * s).sum() + sum(LONE[int(z)] for z in numbers)), forces


def molecule(generator, count):
    """Atoms at least 1.1 Å apart."""
    side = 2
    while True:
        grid = np.stack(np.meshgrid(*[np.arange(side)] * 3), -1).reshape(-1, 3)
        if len(grid) >= count:
            break
        side += 1
    places = grid[generator.permutation(len(grid))[:count]] * 1.6
    return places + generator.uniform(-0.2, 0.2, (count, 3)), generator.choice([1, 6, 8], count)


PULL = {1: 0.3, 6: 0.0, 8: -0.4}


def charged(frame):
    """The frame with charges that depend on the elements and sum to 0, and the dipole moment of these charges."""
    charges = np.array([PULL[int(z)] for z in frame.atomic_numbers])
    charges -= charges.mean()
    return replace(
        frame, charges=charges.astype(np.float32), dipole=(charges @ frame.positions)[None].astype(np.float32)
    )


def frames(number, seed=0, sizes=(3, 9)):
    """Labelled molecules."""
    generator = np.random.default_rng(seed)
    made = []
    for _ in range(number):
        positions, numbers = molecule(generator, int(generator.integers(sizes[0], sizes[1] + 1)))
        energy, forces = morse(positions, numbers)
        made.append(Frames.single(positions, numbers, energy=energy, forces=forces))
    return made


def store(path, number=60, seed=0, sizes=(3, 9), change=None):
    """A store of molecules, each changed by change(index, frame)."""
    made = frames(number, seed, sizes)
    with StoreWriter(path) as writer:
        for index, frame in enumerate(made):
            writer.add(frame if change is None else change(index, frame), "made.xyz", index)
    return Store.open(path)


def values(path, **sections):
    """A small, fast configuration for a store, with overrides by section."""
    base = {
        "model": {"num_channels": 8, "num_layers": 1, "num_radial": 8, "cutoff": 4.0, "max_z": 8},
        "data": {"path": str(path), "validation": 12, "test": 8},
        "schedule": {"warmup_steps": 5},
        "training": {"epochs": 3, "batch_size": 8, "device": "cpu"},
        "output": {"loggers": ["csv"], "report": False, "log_every": 1},
    }
    for name, section in sections.items():
        base[name] = base.get(name, {}) | section
    return base


def config_file(folder, store, /, **sections):
    """A new file c.yaml with these values."""
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump(values(store, **sections)))
    return path
