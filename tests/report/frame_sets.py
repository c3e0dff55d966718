"""Frames and stores that tests share."""

import numpy as np
from ase.build import molecule

from torchmdx import System, evaluate
from torchmdx.datasets.frames import Frames
from torchmdx.datasets.store import Store, StoreWriter

NAMES = ("CH3CH2OH", "H2O", "CH4", "NH3")


def frames_of(structures, potential=None, noise=0.0, seed=0):
    """Frames of ASE structures, labelled by a potential one by one and then disturbed; without one the energy is 0."""
    random = np.random.default_rng(seed)
    energies, forces, stresses = [], [], []
    for atoms in structures:
        energy, force, stress = 0.0, np.full((len(atoms), 3), np.nan), np.full((3, 3), np.nan)
        if potential is not None:
            volume = atoms.cell.rank == 3
            found = evaluate(potential, System.from_ase(atoms), stress=bool(volume))
            energy, force = float(found.energy[0]), found.forces.numpy()
            stress = found.stress[0].numpy() if volume else stress
        energies.append(energy + noise * random.normal())
        forces.append(force + noise * random.normal(size=force.shape))
        stresses.append(stress)
    return Frames(
        counts=np.array([len(atoms) for atoms in structures]),
        positions=np.concatenate([atoms.positions for atoms in structures]),
        atomic_numbers=np.concatenate([atoms.numbers for atoms in structures]).astype(np.int64),
        cell=np.stack([atoms.cell.array for atoms in structures]),
        pbc=np.stack([atoms.pbc for atoms in structures]),
        charge=np.array([float(atoms.info.get("charge", 0)) for atoms in structures]),
        energy=np.array(energies),
        forces=np.concatenate(forces).astype(np.float32),
        stress=np.stack(stresses).astype(np.float32),
    )


def molecules(number, seed=0):
    """Small molecules of several sizes, moved at random."""
    made = []
    for index in range(number):
        atoms = molecule(NAMES[index % len(NAMES)])
        atoms.rattle(0.08, seed=seed + index)
        made.append(atoms)
    return made


def write_store(path, frames, source="data/first.xyz", split_at=None):
    """A store; frames from split_at on come from another file."""
    cut = len(frames) if split_at is None else split_at
    with StoreWriter(path) as writer:
        writer.add(frames.take(np.arange(cut)), source, 0)
        if cut < len(frames):
            writer.add(frames.take(np.arange(cut, len(frames))), "data/second.xyz", 100)
    return Store.open(path)
