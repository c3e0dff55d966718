"""Many molecules: one after the other with a StepPool, and all together as one batch.

Molecules of different sizes can be mixed. On a GPU, a batch has the higher throughput; a pool needs no preparation.
"""

import time

import numpy as np
from ase.build import molecule
from ase.collections import g2

import torchmdx

ELEMENTS = {"H", "C", "N", "O"}


def structures() -> list[torchmdx.System]:
    """Closed-shell molecules of H, C, N and O from ASE's collection, each in three slightly distorted geometries."""
    found = []
    for name in g2.names:
        atoms = molecule(name)
        if len(atoms) > 2 and set(atoms.symbols) <= ELEMENTS and not atoms.get_initial_magnetic_moments().any():
            for seed in range(3):
                moved = atoms.copy()
                moved.rattle(0.02, seed=seed)
                found.append(torchmdx.System.from_ase(moved))
    return found


def main() -> None:
    systems = structures()
    atoms = sum(system.num_atoms for system in systems)
    potential = torchmdx.Calculator().potential
    print(f"{len(systems)} geometries of {min(s.num_atoms for s in systems)} to "
          f"{max(s.num_atoms for s in systems)} atoms, {atoms} in total; {potential.device}")  # fmt: skip

    pool = torchmdx.StepPool(potential)
    pool(systems[0])  # excludes the setup from the timing
    start = time.perf_counter()
    one_by_one = np.array([pool(system).energy[0] for system in systems])
    rate = len(systems) / (time.perf_counter() - start)
    print(f"one after the other: {rate:>8.0f} geometries/s, energies and forces")

    step = torchmdx.CapturedStep(potential, systems)
    positions = np.concatenate([system.positions.numpy() for system in systems])
    step(positions)
    start = time.perf_counter()
    result = step(positions)
    rate = len(systems) / (time.perf_counter() - start)
    print(f"as one batch:        {rate:>8.0f} geometries/s, {step.mode}: {step.why}")
    print(f"largest energy difference: {1000 * np.abs(result.energy - one_by_one).max():.4f} meV")
    change = np.ptp(one_by_one.reshape(-1, 3), axis=1).mean()
    print(f"random displacements of 0.02 Å change energies by {1000 * change:.0f} meV on average")


if __name__ == "__main__":
    main()
